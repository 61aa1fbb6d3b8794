"""Names as Kubernetes and container runtimes take them, where no schema can look: in ``podTemplate``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

IMAGE_PATTERN: Final = (
    r"^(([A-Za-z0-9][A-Za-z0-9.-]*|\[[A-Fa-f0-9:]+\])(:[0-9]+)?/)?"
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[A-Za-z][A-Za-z0-9+._-]*:[A-Fa-f0-9]{32,})?$"
)
"""The rule of ``engine.image`` and ``router.image`` in the CRD."""
IMAGE_REMEDY: Final = (
    "write the name of an image, for example registry.example.com/team/image:tag, without spaces"
)
VARIABLE_PATTERN: Final = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
"""The rule of variables' names in the CRD."""
VARIABLE_REMEDY: Final = "write letters, digits, '_', '-' and '.', no digit first, for example HF_TOKEN"


def is_image(text: str) -> bool:
    """Tell whether a container runtime would take a text for the name of an image."""
    return re.fullmatch(IMAGE_PATTERN, text) is not None


def is_variable(text: str) -> bool:
    """Tell whether every shell and program can be given a variable of that name."""
    return re.fullmatch(VARIABLE_PATTERN, text) is not None


def named(items: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the items of a list that have names, with their positions; whatever else users wrote is passed over."""
    for index, item in enumerate(items if isinstance(items, Iterable) else ()):
        if isinstance(item, dict) and isinstance(name := item.get("name"), str):
            yield index, name, item
