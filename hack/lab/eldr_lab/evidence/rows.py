"""A row of the main table: our number, the published one, a verdict, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eldr_lab.evidence.intervals import Interval
from eldr_lab.evidence.verdicts import Verdict, judge

_NOTHING = "these seeds do not tell ours from no effect"


@dataclass(frozen=True, slots=True)
class Row:
    """One published number and ours."""

    what: str
    ours: Interval
    low: float
    high: float
    published: str
    verdict: Verdict
    why: str
    decimals: int = 1
    sign: str = "+"

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        mean, half = f"{self.sign}.{self.decimals}f", f".{self.decimals}f"
        return self.what, self.ours.text(mean, half), self.published, self.verdict.value, self.why


def row(  # noqa: PLR0917 - the columns, in their order
    what: str,
    ours: Interval,
    low: float,
    high: float,
    text: str,
    why: Mapping[Verdict, str],
    *,
    sign: str = "+",
) -> Row:
    """Return a row with its verdict, and the reason for it."""
    verdict = judge(ours, low, high)
    if verdict is Verdict.NOT and ours.low <= 0 <= ours.high:
        return Row(what, ours, low, high, text, verdict, _NOTHING, sign=sign)
    return Row(what, ours, low, high, text, verdict, why.get(verdict, ""), sign=sign)
