"""What routers count of the requests they place, and what a fit expected; JSON is read and written here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eldr.contract import SIMILARITY_BINS
from eldr_operator import parsing

_OF_90_PERCENT = 1.645
"""Standard errors from the middle of such an interval to its ends."""
_MOST_SHARE = 10.0
"""Ten times the experts of a random batch: no placement costs as much."""
_MOST_BATCH = 1e6
MOST_CLUSTERS = 4096
"""As many as a fit makes."""
_MOST_REMEMBERED = 8
_PREDICTED = ("saving", "saving_low", "saving_high")


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests by how well they fit the set, and by which centroid they are nearest to.

    Parameters
    ----------
    similarity : tuple of int
        Requests whose best cosine lies in each of ``SIMILARITY_BINS`` bins of equal width over [0, 1].
    clusters : tuple of int
        Requests that each slot was the most similar one to.
    logged : int or None
        How many stand in the signature log; None where that is not told.
    """

    similarity: tuple[int, ...]
    clusters: tuple[int, ...]
    requests: int
    logged: int | None = None

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """Return the counts of both, of one set."""
        return Counts(
            tuple(a + sign * b for a, b in zip(self.similarity, other.similarity, strict=True)),
            tuple(a + sign * b for a, b in zip(self.clusters, other.clusters, strict=True)),
            self.requests + sign * other.requests,
            None if self.logged is None or other.logged is None else self.logged + sign * other.logged,
        )

    def since(self, before: Counts) -> Counts | None:
        """Return what was counted after ``before``; None where something has become less, so that they do not belong together."""
        if len(before.clusters) != len(self.clusters):
            return None
        more = self.plus(before, -1)
        return None if min(more.requests, *more.similarity, *more.clusters) < 0 else more


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one router, whose id is new with every start, counted since a set became active on it."""

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
    batch : float, optional
        Mean number of sequences in a step.
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
        if self.low is None or self.high is None:
            return 0.0
        return max(0.0, self.high - self.low) / (2 * _OF_90_PERCENT)


def read_traffic(router: str, value: Mapping[str, Any]) -> Traffic | None:
    """Read ``traffic`` of a router's state; None where it is not what it should be."""
    epoch, digest = parsing.count(value.get("epoch")), parsing.name(value.get("digest"))
    try:
        counts = _read_counts(value, "traffic")
    except ValueError:
        return None
    return None if epoch is None or not digest else Traffic(router, epoch, digest, counts)


def read_saving(value: Mapping[str, Any]) -> Saving | None:
    """Read ``saving`` of a router's state; None where it is not what it should be."""
    steps = parsing.count(value.get("steps"))
    share = parsing.number(value.get("share"), -_MOST_SHARE, 1)
    error = parsing.number(value.get("error"), 0, _MOST_SHARE)
    known = {key: value[key] for key in ("batch", "drafts") if value.get(key) is not None}
    batch = parsing.number(known.get("batch"), 0, _MOST_BATCH)
    drafts = parsing.number(known.get("drafts"), 0, _MOST_SHARE)
    bad = ("batch" in known and batch is None) or ("drafts" in known and drafts is None)
    if bad or steps is None or share is None or error is None:
        return None
    return Saving(share, error, steps, batch, drafts)


def read_baseline(value: Any, k: int | None = None) -> Baseline:
    """Read what a fit has stored beside its set; a prediction that is none is unknown.

    Parameters
    ----------
    value : Any
        As a report has it, or as :func:`dump` wrote it.
    k : int, optional
        Clusters of the set, where they are known.

    Raises
    ------
    ValueError
        If it holds no counts of that set; names the field that does not fit.
    """
    counts = _read_counts(value, "baseline")
    clusters = len(counts.clusters)
    if clusters > MOST_CLUSTERS or clusters != (k or clusters):
        wanted = f"at most {MOST_CLUSTERS}" if clusters > MOST_CLUSTERS else str(k)
        raise ValueError(f"baseline.clusters: expected {wanted}, got {clusters}")
    try:
        before = _read_counts(value.get("before"), "baseline.before")
    except ValueError:
        before = None
    if before is not None and len(before.clusters) != clusters:
        before = None
    shares = [parsing.number(value.get(key), -_MOST_SHARE, 1) for key in _PREDICTED]
    damaged = any(
        value.get(key) is not None and one is None for key, one in zip(_PREDICTED, shares, strict=True)
    )
    # a prediction without the interval that it was made with would seem more certain than it is
    saving, low, high = (None, None, None) if damaged else shares
    return Baseline(counts, saving, low, high, parsing.number(value.get("batch"), 0, _MOST_BATCH), before)


def read_baselines(value: object) -> dict[str, Baseline | None]:
    """Read what :func:`dump` wrote of each set, by digest; what cannot be read is read from the fit's report again."""
    baselines: dict[str, Baseline | None] = {}
    for digest, one in list(value.items())[-_MOST_REMEMBERED:] if isinstance(value, Mapping) else ():
        try:
            baselines[digest] = read_baseline(one) if one != {} else None
        except ValueError:
            continue
    return baselines


def dump(baselines: Mapping[str, Baseline | None]) -> dict[str, Any]:
    """Return baselines as they are remembered: what is read of them, and nothing where a fit stored none."""
    return {digest: {} if one is None else _dump(one) for digest, one in baselines.items()}


def _dump(baseline: Baseline) -> dict[str, Any]:
    predicted = zip(_PREDICTED, (baseline.saving, baseline.low, baseline.high), strict=True)
    before = None if baseline.before is None else _dump_counts(baseline.before)
    more = {**dict(predicted), "batch": baseline.batch, "before": before}
    return _dump_counts(baseline.counts) | {key: one for key, one in more.items() if one is not None}


def _dump_counts(counts: Counts) -> dict[str, Any]:
    return {
        "similarity": list(counts.similarity),
        "clusters": list(counts.clusters),
        "requests": counts.requests,
    }


def _read_counts(value: Any, field: str) -> Counts:
    if not isinstance(value, Mapping):
        raise ValueError(f"{field}: expected counts, got {_shown(value)}")  # noqa: TRY004 - the one error of parsing
    similarity = _numbers(value.get("similarity"), f"{field}.similarity")
    if len(similarity) != SIMILARITY_BINS:
        raise ValueError(
            f"{field}.similarity: expected {SIMILARITY_BINS} bins, got {len(similarity)}; use one version of ELDR"
        )
    clusters = _numbers(value.get("clusters"), f"{field}.clusters")
    requests, logged = parsing.count(value.get("requests")), parsing.count(value.get("logged"))
    if logged is None and value.get("logged") is not None:
        raise ValueError(f"{field}.logged: expected a count, got {_shown(value['logged'])}")
    if not clusters or requests is None or not sum(similarity) == sum(clusters) == requests:
        given = _shown(value.get("requests")) if requests is None else requests
        raise ValueError(
            f"{field}: {given} requests, {sum(similarity)} by similarity, {sum(clusters)} by cluster; they must agree"
        )
    return Counts(similarity, clusters, requests, logged)


def _numbers(value: Any, field: str) -> tuple[int, ...]:
    counts = tuple(map(parsing.count, value)) if isinstance(value, list) else (None,)
    known = tuple(number for number in counts if number is not None)
    if len(known) < len(counts):
        raise ValueError(f"{field}: expected a list of counts, got {_shown(value)}")
    return known


def _shown(value: Any) -> str:
    return parsing.text(value if isinstance(value, str) else type(value).__name__, 80)
