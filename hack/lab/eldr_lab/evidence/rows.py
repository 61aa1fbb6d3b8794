"""A row of the reproduction: one published number, ours, a verdict, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eldr_lab.evidence.intervals import Interval
from eldr_lab.evidence.verdicts import Verdict, judge

_NOTHING = "our interval holds no effect"


@dataclass(frozen=True, slots=True)
class Row:
    """One published number and ours.

    Attributes
    ----------
    what : str
    ours : Interval
    low, high : float
        The published range; equal for one number.
    published : str
        It, as shown, and where it stands.
    verdict : Verdict
    why : str
        Why ours differs, as far as that is known.
    decimals : int
    sign : str
        Of the format: ``+`` where changes are shown.
    tuned : bool
        In sample: something of the simulator was chosen so that this number comes out.
    """

    what: str
    ours: Interval
    low: float
    high: float
    published: str
    verdict: Verdict
    why: str
    decimals: int = 1
    sign: str = "+"
    tuned: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        mean, half = f"{self.sign}.{self.decimals}f", f".{self.decimals}f"
        sample = "in sample" if self.tuned else ""
        return self.what, self.ours.text(mean, half), self.published, sample, self.verdict.value, self.why


def row(  # noqa: PLR0917 - the columns, in their order
    what: str,
    ours: Interval,
    low: float,
    high: float,
    text: str,
    why: Mapping[Verdict, str],
    *,
    sign: str = "+",
    tuned: bool = False,
) -> Row:
    """Return a row with its verdict, and the reason for it."""
    verdict = judge(ours, low, high)
    if verdict is Verdict.NOT and ours.low <= 0 <= ours.high:
        return Row(what, ours, low, high, text, verdict, _NOTHING, sign=sign, tuned=tuned)
    return Row(what, ours, low, high, text, verdict, why.get(verdict, ""), sign=sign, tuned=tuned)
