"""What the operator remembers about drift of one deployment: small, JSON, persisted in one place.

Everything that a decision rests on and that cannot be observed again stands here, so that an operator that is killed at
any moment goes on where it was. What it does not hold is the window that was being filled.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from eldr_operator.records import Amount, Complete, Count, Flag, Name, Record, Time

Phase = Literal["Quiet", "Suspected", "Detected"]
Cause = Literal["TrafficChanged", "SavingLost"]
_Groups = Annotated[tuple[Count, ...], Complete]


class Shown(Record):
    """The last score, for people: 1 and above raises.

    Attributes
    ----------
    similarity, clusters : float
        Share of requests that moved.
    requests : int
        That it rests on.
    """

    value: Amount
    similarity: Amount
    clusters: Amount
    requests: Count


class Spread(Record):
    """By how much real requests vary more than single ones would, learned from the windows themselves.

    It begins high, so that nothing is raised before sessions and bursts are known.

    Attributes
    ----------
    weight : float
        Pairs of spans behind it.
    """

    similarity: Amount = 6.0
    clusters: Amount = 6.0
    weight: Amount = 4.0


class Known(Record):
    """Requests after the activation that were as the fit expected, in the groups of its baseline."""

    windows: Count = 0
    similarity: _Groups = ()
    clusters: _Groups = ()

    @property
    def groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Both."""
        return self.similarity, self.clusters


class Drift(Record):
    """Whether traffic is still what the set was fitted for.

    Attributes
    ----------
    since : datetime or None
        When it was detected.
    changed : datetime or None
        All requests from here on are of the new regime, as far as windows can tell.
    began : datetime or None
        Before this traffic was as it had been: begin of the first window that differed.
    streak, calm : int
        Consecutive windows that differ, and that look like the baseline again since the detection.
    requests, logged : int, int or None
        Since ``changed``, and how many of them stand in the signature log; None where routers do not tell.
    unsettled : datetime or None
        Since when the mix has moved on before there were the records that a fit needs; None: since it was detected.
    steady : bool
        Whether the last windows were as the first ones of the new regime.
    returned : bool
        Whether traffic is again what it was before the set's own.
    """

    phase: Phase = "Quiet"
    cause: Cause | None = None
    since: Time | None = None
    changed: Time | None = None
    began: Time | None = None
    streak: Count = 0
    calm: Count = 0
    requests: Count = 0
    logged: Count | None = None
    unsettled: Time | None = None
    steady: Flag = False
    returned: Flag = False


class Promise(Record):
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

    windows: Count = 0
    lost: Count = 0
    kept: Count = 0
    lost_since: Time | None = None
    since_lost: Count = 0


class Protection(Record):
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

    active: Flag = False
    since: Time | None = None
    report: Name | None = None
    worse: Count = 0
    left: Flag = False
    calm: Count = 0
    better: Count = 0
    waited: Count = 0
    returns: Count = 0


class Fits(Record):
    """Fits that drift has caused: the last one's number and end, and when those of the last day started.

    Attributes
    ----------
    fruitless : int
        How many, one after the other, have not brought quiet.
    """

    number: Count = 0
    started: tuple[Time, ...] = ()
    finished: Time | None = None
    fruitless: Count = 0


class State(Record):
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

    digest: Name | None = None
    seen: Time | None = None
    shown: Shown | None = None
    known: Known = Known()
    spread: Spread = Spread()
    drift: Drift = Drift()
    promise: Promise = Promise()
    protection: Protection = Protection()
    fits: Fits = Fits()
    # called "barred" until 0.1
    blocked: tuple[Name, ...] = Field(default=(), validation_alias=AliasChoices("blocked", "barred"))
    harmful: tuple[Name, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as it is persisted."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
