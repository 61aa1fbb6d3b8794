"""Traffic of captured activations that stays or drifts, as counts that routers would serve: in sessions and bursts, by day and night."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.contract import SIMILARITY_BINS
from eldr.fit.pipeline import FitSettings, fit
from eldr.fit.samples import Samples
from eldr.sim import traces as captured
from eldr_operator.drift.counts import Baseline, Counts, Traffic
from eldr_operator.drift.decide import decide
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import State
from eldr_operator.drift.windows import advance
from tests.support.captured import calibration

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Counted = npt.NDArray[np.unsignedinteger]
Mix = dict[str, float]
DAY = 86_400.0
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_GRID = 60.0
_SUBJECTS = 3  # records that a session's prompts resemble


@dataclass(frozen=True, slots=True)
class Crowd:
    """How requests come.

    Attributes
    ----------
    session : float
        Mean requests of a session, of a geometric law; they are of one kind, and of few records of it.
    pause : float
        Mean seconds between two of them.
    bursts : float
        Share of the sessions that are bursts instead: programs that send ``burst`` requests on average within seconds.
    burst : float
    wave : float
        Height of the daily wave of the rate, over its mean.
    """

    session: float = 1.0
    pause: float = 30.0
    bursts: float = 0.0
    burst: float = 30.0
    wave: float = 0.8


SINGLE = Crowd()
SESSIONS = Crowd(session=5.0)
BURSTS = Crowd(session=5.0, bursts=0.01)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What a set that was fitted on some kinds of text makes of all of them.

    Attributes
    ----------
    kinds : tuple of str
        All that exist.
    members : tuple of ndarray of int
        By kind, records that the set was not fitted on.
    bins, clusters : ndarray of int, shape (n_records,)
        Of the best similarity, and the most similar slot.
    k : int
    digest : str
    """

    kinds: tuple[str, ...]
    members: tuple[Ints, ...]
    bins: Ints
    clusters: Ints
    k: int
    digest: str = "sha256:first"

    def counts(self, records: Ints) -> Counts:
        """Return what a router counts of these requests."""
        return Counts(
            tuple(np.bincount(self.bins[records], minlength=SIMILARITY_BINS).tolist()),
            tuple(np.bincount(self.clusters[records], minlength=self.k).tolist()),
            len(records),
        )


@lru_cache(maxsize=8)
def world(fitted: tuple[str, ...], k: int, seed: int = 1) -> World:
    """Fit a set on half of the records of some kinds."""
    traces = captured.load()
    others = np.array(traces.split()[1])
    members = tuple(others[traces.kind[others] == kind] for kind in range(len(traces.kinds)))
    return world_of(calibration(traces, fitted), k, seed, traces.kinds, members, traces.prefill_counts)


def world_of(
    samples: Samples,
    k: int,
    seed: int,
    names: tuple[str, ...],
    members: tuple[Ints, ...],
    prefill: Iterable[Counted],
) -> World:
    """Return what a set that is fitted on some requests makes of all."""
    centroids = fit(samples, FitSettings(k=k, model="tiny", seed=seed), now=0.0).centroids
    scores = np.stack([centroids.similarities(counts) for counts in prefill])
    best = scores.max(axis=1)
    return World(
        kinds=names,
        members=members,
        bins=np.minimum((best * SIMILARITY_BINS).astype(np.int64), SIMILARITY_BINS - 1),
        clusters=scores.argmax(axis=1).astype(np.int64),
        k=k,
    )


def kinds() -> tuple[str, ...]:
    """Return the kinds of text there are."""
    return captured.load().kinds


def even(*names: str) -> Mix:
    """Return a mix of equal shares."""
    return dict.fromkeys(names, 1 / len(names))


def blend(first: Mix, second: Mix, part: float) -> Mix:
    """Return a mix of which the second one makes a part."""
    names = {*first, *second}
    return {name: (1 - part) * first.get(name, 0.0) + part * second.get(name, 0.0) for name in names}


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Requests in the order of their arrival.

    Attributes
    ----------
    times : ndarray of float64, shape (n,)
        Seconds.
    records : ndarray of int, shape (n,)
    """

    times: Floats
    records: Ints


def stream(
    world: World,
    mix: Callable[[float], Mix],
    *,
    rate: float,
    seconds: float,
    crowd: Crowd,
    rng: np.random.Generator,
    start: float = 0.0,
) -> Stream:
    """Draw requests.

    Parameters
    ----------
    world : World
    mix : callable
        Shares of the kinds at a time, seconds.
    rate : float
        Mean requests per second over a day.
    seconds : float
    crowd : Crowd
    rng : numpy.random.Generator
    start : float
        Time of day at which it begins, seconds; the rate is lowest at 0.
    """
    mean = crowd.session * (1 - crowd.bursts) + crowd.burst * crowd.bursts
    grid = np.arange(0.0, seconds, _GRID)
    wave = 1.0 - crowd.wave * np.cos(2 * np.pi * (grid + start) / DAY)
    number = rng.poisson(rate / mean * wave * np.minimum(_GRID, seconds - grid))
    begins = np.repeat(grid, number) + rng.uniform(0.0, _GRID, number.sum())
    shares = np.array([[mix(time).get(kind, 0.0) for kind in world.kinds] for time in grid])
    edges = np.cumsum(shares, axis=1)[np.repeat(np.arange(len(grid)), number)]
    kind = (rng.uniform(size=len(begins))[:, None] * edges[:, -1:] > edges).sum(axis=1)
    burst = rng.uniform(size=len(begins)) < crowd.bursts
    size = rng.geometric(1.0 / np.where(burst, crowd.burst, crowd.session))
    of = np.repeat(np.arange(len(begins)), size)
    pauses = rng.exponential(np.where(burst, 0.2, crowd.pause)[of])
    total = np.cumsum(pauses)
    first = np.cumsum(size) - size
    times = begins[of] + total - total[first][of]
    sizes = np.array([len(members) for members in world.members])
    starts = np.cumsum(sizes) - sizes
    flat = np.concatenate(world.members)
    subjects = rng.integers(0, 1 << 30, (len(begins), _SUBJECTS))
    chosen = subjects[of, rng.integers(0, _SUBJECTS, len(of))] % sizes[kind][of]
    records = flat[starts[kind][of] + chosen]
    order = np.argsort(times, kind="stable")
    order = order[times[order] < seconds]
    return Stream(times[order], records[order])


def baseline(
    world: World,
    mix: Mix,
    *,
    size: int,
    crowd: Crowd,
    rng: np.random.Generator,
    sampled: float = 0.1,
    **saved: float,
) -> Baseline:
    """Return what a fit would have stored: every third record of a log that samples the same traffic."""
    wanted = int(size * 3 / sampled * 1.3) + 200
    found = stream(world, lambda _: mix, rate=2.0, seconds=wanted / 2.0, crowd=crowd, rng=rng, start=DAY / 4)
    kept = found.records[rng.uniform(size=len(found.records)) < sampled / 3][-size:]
    return Baseline(world.counts(kept), **saved)


def looks(
    world: World, requests: Stream, *, every: float, seconds: float, routers: int, rng: np.random.Generator
) -> Iterator[tuple[float, list[Traffic]]]:
    """Yield what all routers serve, look by look: the time in seconds, and their counts since the start."""
    at = np.arange(0.0, seconds + every / 2, every)
    where = rng.integers(0, routers, len(requests.times))
    turn = np.minimum(np.searchsorted(at, requests.times, side="left"), len(at) - 1)
    tables: list[tuple[Any, Any]] = []
    for router in range(routers):
        mine = where == router
        tables.append(
            (
                _table(turn[mine], world.bins[requests.records[mine]], len(at), SIMILARITY_BINS),
                _table(turn[mine], world.clusters[requests.records[mine]], len(at), world.k),
            )
        )
    for index, time in enumerate(at.tolist()):
        views = []
        for router, (similarity, clusters) in enumerate(tables):
            row = tuple(clusters[index].tolist())
            counts = Counts(tuple(similarity[index].tolist()), row, sum(row))
            views.append(Traffic(f"r{router}", 1, world.digest, counts))
        yield time, views


def _table(turn: Ints, value: Ints, turns: int, width: int) -> Ints:
    flat = np.bincount(turn * width + value, minlength=turns * width)
    return flat.reshape(turns, width).cumsum(axis=0)


@dataclass(frozen=True, slots=True)
class Course:
    """What the operator saw of one stream.

    Attributes
    ----------
    times, scores : tuple of float
        Of the windows: when they were full, seconds, and how far they were from the baseline.
    detected : tuple of float
        When drift was detected, seconds.
    """

    times: tuple[float, ...]
    scores: tuple[float, ...]
    detected: tuple[float, ...]


def watch(
    world: World,
    requests: Stream,
    expected: Baseline,
    spec: DriftSpec,
    *,
    seconds: float,
    rng: np.random.Generator,
    every: float = 20.0,
    routers: int = 2,
    after: float | None = None,
) -> Course:
    """Let the operator look at routers; with ``after``, only until it has detected drift after that time."""
    gathering, state = None, State()
    times: list[float] = []
    scores: list[float] = []
    detected: list[float] = []
    for time, traffic in looks(world, requests, every=every, seconds=seconds, routers=routers, rng=rng):
        now = BEGIN + timedelta(seconds=time)
        gathering = advance(gathering, world.digest, world.k, traffic, now, spec=spec)
        window = gathering.window
        if window is None or window.latest.until < now:
            continue
        seen = Observation(digest=world.digest, baseline=expected, window=window, samples=100_000)
        before = state.drift.phase
        state, _ = decide(state, spec, seen, now)
        times.append(time)
        scores.append(state.shown.value if state.shown else 0.0)
        if state.drift.phase == "Detected" != before:
            detected.append(time)
            if after is not None and time > after:
                break
    return Course(tuple(times), tuple(scores), tuple(detected))
