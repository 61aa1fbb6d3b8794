"""What routers count of the requests they place, and what a fit expected; JSON is read here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from eldr.contract import SIMILARITY_BINS
from eldr_operator import border

_OF_90_PERCENT = 1.645
"""Standard errors from the middle of such an interval to its ends."""
_MOST_SHARE = 10.0
"""Ten times the experts of a random batch: no placement costs as much."""
_MOST_BATCH = 1e6


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests by how well they fit the set, and by which centroid they are nearest to.

    Parameters
    ----------
    similarity : tuple of int
        Requests whose best cosine lies in each of ``SIMILARITY_BINS`` bins of equal width over [0, 1].
    clusters : tuple of int
        Requests that each slot was the most similar one to.
    requests : int
        How many there are altogether.
    logged : int or None
        How many of them stand in the signature log; None where that is not told.
    """

    similarity: tuple[int, ...]
    clusters: tuple[int, ...]
    requests: int
    logged: int | None = None

    def plus(self, other: Counts) -> Counts:
        """Return the counts of both, of one set."""
        return Counts(
            tuple(a + b for a, b in zip(self.similarity, other.similarity, strict=True)),
            tuple(a + b for a, b in zip(self.clusters, other.clusters, strict=True)),
            self.requests + other.requests,
            None if self.logged is None or other.logged is None else self.logged + other.logged,
        )

    def since(self, before: Counts) -> Counts | None:
        """Return what was counted after ``before``; None where something has become less, so that they do not belong together."""
        if len(before.clusters) != len(self.clusters):
            return None
        more = Counts(
            tuple(a - b for a, b in zip(self.similarity, before.similarity, strict=True)),
            tuple(a - b for a, b in zip(self.clusters, before.clusters, strict=True)),
            self.requests - before.requests,
            None if self.logged is None or before.logged is None else self.logged - before.logged,
        )
        return None if min(more.requests, *more.similarity, *more.clusters) < 0 else more


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one router counted since a set became active on it.

    Parameters
    ----------
    router : str
        New with every start.
    """

    router: str
    epoch: int
    digest: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class Saving:
    """Active experts per decode step that placement saves now, against random batches of the same sizes.

    Parameters
    ----------
    share : float
        Below 0 where placement does worse than chance.
    error : float
        Its standard error.
    steps : int
        Decode steps it was measured on.
    batch : float, optional
        Mean number of sequences in those steps.
    drafts : float, optional
        Share of experts that drafts add to random batches; None where engines do not draft.
    """

    share: float
    error: float
    steps: int
    batch: float | None = None
    drafts: float | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a fit expected of its set, from records that it held out.

    Parameters
    ----------
    saving, low, high : float or None
        Predicted share of active experts saved, and its interval of 90 %.
    batch : float, optional
        Mean number of sequences in a step that the prediction assumed.
    before : Counts, optional
        Of records before the change that the fit was made for: traffic that the set before served.
    """

    counts: Counts
    saving: float | None = None
    low: float | None = None
    high: float | None = None
    batch: float | None = None
    before: Counts | None = None

    @property
    def error(self) -> float:
        """Standard error of the predicted saving; 0 where no interval is known."""
        return (
            0.0
            if self.low is None or self.high is None
            else max(0.0, self.high - self.low) / (2 * _OF_90_PERCENT)
        )


def read_traffic(router: str, value: Mapping[str, Any]) -> Traffic:
    """Read ``traffic`` of a router's state; ValueError names the field that does not fit."""
    epoch, digest = border.count(value.get("epoch")), border.name(value.get("digest"))
    if epoch is None or not digest:
        told = f"{_shown(value.get('epoch'))} and {_shown(value.get('digest'))}"
        raise ValueError(f"traffic: expected an epoch (integer) and a digest (string), got {told}")
    return Traffic(router, epoch, digest, read_counts(value, "traffic"))


def read_counts(value: Mapping[str, Any], field: str) -> Counts:
    """Read the counts of a router or of a baseline; ValueError names the field that does not fit."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{field}: expected counts, got {_shown(value)}")  # noqa: TRY004 - the border's one error
    similarity = _numbers(value.get("similarity"), f"{field}.similarity")
    if len(similarity) != SIMILARITY_BINS:
        raise ValueError(
            f"{field}.similarity: expected {SIMILARITY_BINS} bins, got {len(similarity)}; use one version of ELDR"
        )
    clusters = _numbers(value.get("clusters"), f"{field}.clusters")
    requests, logged = value.get("requests"), value.get("logged")
    if logged is not None and not _is_count(logged):
        raise ValueError(f"{field}.logged: expected a count, got {_shown(logged)}")
    if not clusters or not _is_count(requests) or not sum(similarity) == sum(clusters) == requests:
        told = requests if _is_count(requests) else _shown(requests)
        raise ValueError(
            f"{field}: {told} requests, {sum(similarity)} by similarity, {sum(clusters)} by cluster; they must agree"
        )
    return Counts(similarity, clusters, requests, logged)


def read_saving(value: Mapping[str, Any]) -> Saving:
    """Read ``saving`` of a router's state; ValueError names the field that does not fit."""
    steps, batch, drafts = value.get("steps"), value.get("batch"), value.get("drafts")
    if not _is_count(steps):
        raise ValueError(f"saving.steps: expected how many, got {_shown(steps)}")
    return Saving(
        _number(value.get("share"), "saving.share", -_MOST_SHARE, 1),
        _number(value.get("error"), "saving.error", 0, _MOST_SHARE),
        steps,
        None if batch is None else _number(batch, "saving.batch", 0, _MOST_BATCH),
        None if drafts is None else _number(drafts, "saving.drafts", 0, _MOST_SHARE),
    )


def read_baseline(value: Mapping[str, Any]) -> Baseline:
    """Read what a fit has stored beside its set; a prediction that is none is unknown.

    Raises
    ------
    ValueError
        If it holds no counts; names the field that does not fit.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"baseline: expected an object, got {_shown(value)}")  # noqa: TRY004 - the border's one error

    def before() -> Counts | None:
        try:
            return read_counts(value["before"], "baseline.before")
        except (KeyError, ValueError):
            return None

    keys = ("saving", "saving_low", "saving_high")
    shares = [border.number(value.get(key), -_MOST_SHARE, 1) for key in keys]
    damaged = any(value.get(key) is not None and one is None for key, one in zip(keys, shares, strict=True))
    # a prediction without the interval that it was made with would seem more certain than it is
    saving, low, high = (None, None, None) if damaged else shares
    batch = border.number(value.get("batch"), 0, _MOST_BATCH)
    return Baseline(read_counts(value, "baseline"), saving, low, high, batch, before())


def most_telling(measured: Sequence[Saving]) -> Saving | None:
    """Return the measurement on the most steps: routers look at the same engines, so theirs must not be averaged."""
    return max(measured, key=lambda one: one.steps, default=None)


def _numbers(value: Any, field: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(_is_count(number) for number in value):
        raise ValueError(f"{field}: expected a list of counts, got {_shown(value)}")
    return tuple(value)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= border.MOST_COUNT


def _number(value: Any, field: str, low: float, high: float) -> float:
    found = border.number(value, low, high)
    if found is None:
        raise ValueError(f"{field}: expected a number from {low:g} to {high:g}, got {_shown(value)}")
    return found


def _shown(value: Any) -> str:
    return border.text(value if isinstance(value, str) else type(value).__name__, 80)
