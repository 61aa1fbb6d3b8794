"""Values in messages: in short, whatever they are. Pure."""

from __future__ import annotations

import reprlib


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict = 3, 3, 3
        self.maxlong, self.maxstring, self.maxother = 40, 60, 60

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python writes no number of thousands of digits
            return f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()
_LONGEST = 120  # what is nested can be long though each part is short


def shown(value: object) -> str:
    """Return a value as a message shows it.

    Examples
    --------
    >>> shown("text"), shown(10**400)
    ("'text'", '100000000000000000...0000000000000000000')
    """
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
