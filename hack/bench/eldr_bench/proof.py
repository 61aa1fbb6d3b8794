"""What a benchmark holds itself to: it publishes figures only if it measured what it names."""

from __future__ import annotations


class Unproven(SystemExit):
    """A benchmark measured something else than it names; the message says what it found.

    It ends the program with status 1, the message on stderr.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"no figures, for this is not what they would name: {why}")


def require(holds: object, why: str) -> None:
    """End the program unless something holds; ``why`` says what was found instead."""
    if not holds:
        raise Unproven(why)
