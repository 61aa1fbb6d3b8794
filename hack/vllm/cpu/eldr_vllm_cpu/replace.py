"""Replacing parts of vLLM, so that a release without them is noticed."""

from __future__ import annotations

from typing import Any


def replace(owner: Any, name: str, by: Any) -> None:
    """Set an attribute that is there; AttributeError if it is not: setting it would change nothing, and nobody would notice."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner.__name__} has no {name} in this release: change {__package__}")
    setattr(owner, name, by)


class With:
    """An object of which some attributes are others."""

    def __init__(self, inner: Any, **others: Any) -> None:
        self._inner = inner
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
