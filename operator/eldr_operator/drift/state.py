"""What the operator remembers about drift of one deployment: small, JSON, persisted in one place.

Everything that a decision rests on and that cannot be observed again stands here, so that an operator that is killed at
any moment goes on where it was. What it does not hold is the window that was being filled.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict

from eldr_operator.camel import CamelModel

Phase = Literal["Quiet", "Suspected", "Detected"]
Cause = Literal["TrafficChanged", "SavingLost"]


class _Record(CamelModel):
    model_config = ConfigDict(allow_inf_nan=False)


class Shown(_Record):
    """The last score, for people.

    Attributes
    ----------
    value : float
        1 and above raises.
    similarity, clusters : float
        Share of requests that moved.
    requests : int
        That it rests on.
    """

    value: float
    similarity: float
    clusters: float
    requests: int


class Spread(_Record):
    """By how much real requests vary more than single ones would, learned from the windows themselves.

    Attributes
    ----------
    similarity, clusters : float
        At least 1. It begins high, so that nothing is raised before sessions and bursts are known.
    weight : float
        Pairs of spans behind it.
    """

    similarity: float = 6.0
    clusters: float = 6.0
    weight: float = 4.0


class Known(_Record):
    """Requests after the activation that were as the fit expected, in the groups of its baseline."""

    windows: int = 0
    similarity: tuple[int, ...] = ()
    clusters: tuple[int, ...] = ()

    @property
    def groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Both."""
        return self.similarity, self.clusters


class Drift(_Record):
    """Whether traffic is still what the set was fitted for.

    Attributes
    ----------
    phase : {"Quiet", "Suspected", "Detected"}
    cause : {"TrafficChanged", "SavingLost"} or None
    since : datetime or None
        When it was detected.
    changed : datetime or None
        All requests from here on are of the new regime, as far as windows can tell.
    began : datetime or None
        Before this traffic was as it had been: begin of the first window that differed.
    streak : int
        Consecutive windows that differ.
    calm : int
        Consecutive windows since the detection that look like the baseline again.
    requests : int
        Since ``changed``.
    logged : int or None
        How many of them stand in the signature log; None where routers do not tell.
    unsettled : datetime or None
        Since when the mix has moved on before there were the records that a fit needs; None: since it was detected.
    steady : bool
        Whether the last windows were as the first ones of the new regime.
    returned : bool
        Whether traffic is again what it was before the set's own.
    """

    phase: Phase = "Quiet"
    cause: Cause | None = None
    since: datetime | None = None
    changed: datetime | None = None
    began: datetime | None = None
    streak: int = 0
    calm: int = 0
    requests: int = 0
    logged: int | None = None
    unsettled: datetime | None = None
    steady: bool = False
    returned: bool = False


class Promise(_Record):
    """What the set was to save, and saves.

    Attributes
    ----------
    windows : int
        That told something, since the activation.
    lost, kept : int
        Consecutive ones of them in which the saving was significantly below its share of the promise, and was not below it.
    lost_since : datetime or None
        End of the first lost one.
    since_lost : int
        Windows since the last lost one, those included that told nothing.
    """

    windows: int = 0
    lost: int = 0
    kept: int = 0
    lost_since: datetime | None = None
    since_lost: int = 0


class Protection(_Record):
    """Whether the set is out of service because it harms.

    Attributes
    ----------
    report : str or None
        The fit whose report said last that the set harms.
    worse : int
        Consecutive windows in which placement did worse than chance.
    left : bool
        Whether traffic differed from the baseline when or since protection began; only then can it return.
    calm : int
        Consecutive windows that look like the baseline again.
    better : int
        Windows in which it did better than chance: consecutive ones of a set that harms and goes on serving, pinned say; of one
        that does not harm, all since it did worse.
    waited : int
        Windows out of service since there was drift last.
    returns : int
        How often the set came back, and has not proved itself since.
    """

    active: bool = False
    since: datetime | None = None
    report: str | None = None
    worse: int = 0
    left: bool = False
    calm: int = 0
    better: int = 0
    waited: int = 0
    returns: int = 0


class Fits(_Record):
    """Fits that drift has caused.

    Attributes
    ----------
    number : int
        Of the last one.
    started : tuple of datetime
        Those of the last day.
    finished : datetime or None
        The last one.
    fruitless : int
        How many, one after the other, have not brought quiet.
    """

    number: int = 0
    started: tuple[datetime, ...] = ()
    finished: datetime | None = None
    fruitless: int = 0


class State(_Record):
    """All of it.

    Attributes
    ----------
    digest : str or None
        Of the set that the evidence is about.
    seen : datetime or None
        End of the last window that was judged; a window is judged once.
    blocked : tuple of str
        Digests of sets that were rolled back, newest last; only a pin brings one back.
    harmful : tuple of str
        Digests of sets that harm, or harmed when they were active last.
    """

    digest: str | None = None
    seen: datetime | None = None
    shown: Shown | None = None
    known: Known = Known()
    spread: Spread = Spread()
    drift: Drift = Drift()
    promise: Promise = Promise()
    protection: Protection = Protection()
    fits: Fits = Fits()
    blocked: tuple[str, ...] = ()
    harmful: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return it as it is persisted."""
        found: dict[str, object] = self.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
        )
        return found
