"""Windows of requests out of what routers have counted since their start. Pure.

A window is the requests of all routers between two looks, at least a number of them and at least a time long. What is
gathered lives in the operator's memory: an operator that starts anew forgets the windows before, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from eldr_operator.drift.counts import Counts, Traffic
from eldr_operator.drift.spec import DriftSpec

FORGET = timedelta(minutes=5)
"""A router that was not seen for so long begins anew: what it counted in between is not recent."""

REMEMBERED = 64
"""Windows that are kept, to tell how much windows vary and whether the mix goes on changing."""


@dataclass(frozen=True, slots=True)
class Span:
    """Requests of a time."""

    since: datetime
    until: datetime
    counts: Counts


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that one set met.

    Parameters
    ----------
    spans : tuple of Span
        The windows before, as far as they are remembered, and this one, the newest, last.
    """

    digest: str
    spans: tuple[Span, ...]

    @property
    def latest(self) -> Span:
        """The window itself."""
        return self.spans[-1]

    def together(self, number: int) -> Span | None:
        """Return the last windows as one; None while they are fewer."""
        return _join(self.spans[-number:], number)

    def earlier(self, number: int) -> Span | None:
        """Return as many windows as one that end two before those of :meth:`together`: sessions that both hold are few."""
        return _join(self.spans[: -number - 1][-number:], number)

    def first_since(self, time: datetime, number: int) -> Span | None:
        """Return the first windows after a time as one, if none of them is in :meth:`together`."""
        return _join([span for span in self.spans[:-number] if span.since >= time][:number], number)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a router had counted when it was looked at last."""

    at: datetime
    epoch: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class Gathering:
    """The window that is being filled, after those before it.

    Parameters
    ----------
    counts : Counts or None
        None before the first request.
    routers : mapping
        Router id to what it had counted.
    past : tuple of Span
        The last ``REMEMBERED`` windows, newest last.
    """

    digest: str
    since: datetime
    counts: Counts | None = None
    routers: Mapping[str, Seen] = field(default_factory=dict)
    past: tuple[Span, ...] = ()

    @property
    def window(self) -> Window | None:
        """The last full one, with those before it."""
        return Window(self.digest, self.past) if self.past else None


def advance(
    gathering: Gathering | None,
    digest: str,
    k: int,
    traffic: Iterable[Traffic],
    now: datetime,
    *,
    spec: DriftSpec,
) -> Gathering:
    """Look at the routers once more.

    Parameters
    ----------
    gathering : Gathering or None
        From the look before; None at the first one.
    digest, k : str, int
        Of the active set, and its number of clusters; routers that tell of another are left out.
    """
    if gathering is None or gathering.digest != digest:
        gathering = Gathering(digest, now, routers=gathering.routers if gathering else {})
    if now < gathering.since:  # the clock was set back
        gathering = Gathering(digest, now, routers=gathering.routers)
    routers = {id_: seen for id_, seen in gathering.routers.items() if now - seen.at <= FORGET}
    counts = gathering.counts
    for one in traffic:
        last = routers.get(one.router)
        routers[one.router] = Seen(now, one.epoch, one.counts)
        if one.digest != digest or len(one.counts.clusters) != k or last is None:
            continue  # what a router counted before it was first seen may be old
        more = one.counts if last.epoch != one.epoch else one.counts.since(last.counts)
        if more is not None:
            counts = more if counts is None else counts.plus(more)
    gathering = replace(gathering, counts=counts, routers=routers)
    short = (now - gathering.since).total_seconds() < spec.window_seconds
    if counts is None or counts.requests < spec.window_requests or short:
        return gathering
    past = (*gathering.past, Span(gathering.since, now, counts))[-REMEMBERED:]
    return Gathering(digest, now, routers=routers, past=past)


def _join(spans: Sequence[Span], wanted: int) -> Span | None:
    if len(spans) < wanted:
        return None
    counts = spans[0].counts
    for span in spans[1:]:
        counts = counts.plus(span.counts)
    return Span(spans[0].since, spans[-1].until, counts)
