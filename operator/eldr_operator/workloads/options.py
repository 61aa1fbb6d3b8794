"""Arguments for vLLM, read as vLLM reads them. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_LETTERS = frozenset(("-n", "-r", "-q"))
"""Options of one letter, to which a value may be attached: -n2."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option among arguments; its value is empty if it has none, its key if it sets none of JSON."""

    index: int
    name: str
    key: str
    value: str
    shown: str

    def may_be(self, names: Sequence[str], complete: Collection[str] = ()) -> bool:
        """Tell whether vLLM may read it as one of these: it takes any unambiguous beginning of an option.

        An ambiguous one may be, too: vLLM would end at its start.

        Parameters
        ----------
        names : sequence of str
            An option and its short forms.
        complete : collection of str
            Names that are no beginnings of others.
        """
        if self.name in complete or not self.name.lstrip("-"):
            return self.name in names
        return any(known.startswith(self.name) for known in names)


def options(args: Sequence[str]) -> Iterator[Option]:
    """Yield the options among arguments."""
    for index, argument in enumerate(args):
        if not argument.startswith("-"):
            continue
        name, own = _split(argument)
        following = args[index + 1] if own is None and index + 1 < len(args) else ""
        shown = argument if following.startswith("--") else f"{argument} {following}".rstrip()
        key = argument.partition("=")[0].partition(".")[2]
        yield Option(index, name, key, following if own is None else own, shown)


def as_json(text: str) -> Any:
    """Return a value, or key of one: what is no JSON is a text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _split(argument: str) -> tuple[str, str | None]:
    """Return an option, and the value if it holds one.

    --option.key sets one key of JSON, underscores stand for dashes, and a value may follow a letter at once.
    """
    name, equals, value = argument.partition("=")
    if not name.startswith("--") and (letter := name[:2]) in _LETTERS and name != letter:
        return letter, argument.removeprefix(letter)
    name = name.partition(".")[0]
    return name.replace("_", "-") if name.startswith("--") else name, value if equals else None
