"""What one step of an engine was, on either side of the pipe to its process."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """A step.

    Attributes
    ----------
    seconds : float
        CPU time of the one thread that does everything: on a machine shared with others it says what the clock would on one's own.
    rows : int
        Tokens computed.
    experts : list of int
        Distinct ones, layer by layer.
    names, ended : list of str
        Requests that got a token, and those that got their last one.
    """

    seconds: float
    rows: int
    experts: list[int]
    names: list[str]
    ended: list[str]

    @property
    def active(self) -> float:
        """Distinct experts, mean over the layers."""
        return sum(self.experts) / len(self.experts)
