"""When requests arrive, which ones, and how much they ask for."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.simulate.population import Arrivals, Ints, Population
from eldr.simulate.prefix import PrefixCache

Times = npt.NDArray[np.float64]

_MOST = 5e6
"""Requests of a run: more take longer than anybody waits."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured: requests that arrive in ``[warmup, end)``.

    Attributes
    ----------
    warmup, end : float
        Seconds.
    cooldown : float
        Requests go on arriving for so long, so that the last measured ones meet the same load as the others; seconds.
    """

    warmup: float
    end: float
    cooldown: float


@dataclass(frozen=True, slots=True)
class Prefill:
    """Engines that compute prompts, one at a time, first come first served.

    Attributes
    ----------
    engines : int
    fixed, per_token : float
        Seconds of a prompt, and of each of its tokens.
    """

    engines: int
    fixed: float
    per_token: float

    def seconds(self, tokens: Ints) -> Times:
        """Return how long prompts of which so many tokens are computed take."""
        seconds: Times = self.fixed + self.per_token * tokens.astype(np.float64)
        return seconds


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests in the order in which routers place them.

    Attributes
    ----------
    arrival : ndarray of float, shape (n,)
        When each arrives, seconds.
    ready : ndarray of float, shape (n,)
        When its prompt is computed and it is placed, ascending, seconds.
    record : ndarray of int, shape (n,)
        Which request of the population it is.
    tokens : ndarray of int, shape (n,)
        Decode steps that it needs, at least 1.
    measured : ndarray of bool, shape (n,)
    """

    arrival: Times
    ready: Times
    record: Ints
    tokens: Ints
    measured: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.arrival)


def make_workload(
    population: Population,
    *,
    rate: float,
    window: Window,
    seed: int,
    cache: PrefixCache | None = None,
    output_tokens: int | None,
    drift_at: float = math.inf,
    prefill: Prefill | None = None,
    logged: bool = False,
) -> Workload:
    """Draw Poisson arrivals, or take the requests in the order and with the gaps in which they were logged.

    Parameters
    ----------
    population : Population
    rate : float
        Requests per second.
    window : Window
    seed : int
        The same for every policy that is compared.
    cache : PrefixCache, optional
        Tokens that prefill engines need not compute.
    output_tokens : int, optional
        Length of all answers; None: as long as each request's was.
    drift_at : float
        When the mix of labels changes, seconds.
    prefill : Prefill, optional
        Without, prompts take no time.
    logged : bool
        Take logged gaps, all of them scaled to the rate. The seed says where in the log it begins; after its end it begins again.

    Raises
    ------
    ValueError
        If the mix should change and the population knows no other, or lengths or logged arrivals are not known.
    """
    if rate <= 0:
        raise ValueError(f"rate: expected more than 0 requests per second, got {rate}")
    if not rate * (window.end + window.cooldown) <= _MOST:
        raise ValueError(
            f"{rate:.3g} requests per second for {window.end + window.cooldown:.3g} s are too many, {_MOST:.0e} at most; "
            "lower the rate, shorten the time, or name a slower law"
        )
    if output_tokens is None and population.output_tokens is None:
        raise ValueError("output_tokens: expected a number, these requests have no lengths of their own")
    rng = np.random.default_rng([seed, 1])
    last = window.end + window.cooldown
    if logged:
        if population.arrivals is None:
            raise ValueError("arrivals: nobody knows when these requests came; use poisson")
        arrival, record = _as_logged(population.arrivals, rate, last, rng)
    else:
        arrival = _poisson(rate, last, rng)
        record = _records(population, arrival, drift_at, np.random.default_rng([seed, 2]))
    if output_tokens is not None:
        tokens = np.full(len(arrival), output_tokens)
    else:
        assert population.output_tokens is not None  # noqa: S101 - checked above
        tokens = population.output_tokens[record]
    ready = arrival
    if prefill is not None:
        ready = _prefilled(prefill, arrival, _computed(population, record, cache))
    order = np.argsort(ready, kind="stable")
    arrival, record, tokens = arrival[order], record[order], tokens[order]
    measured = (arrival >= window.warmup) & (arrival < window.end)
    return Workload(arrival, ready[order], record, tokens, measured)


def prefill_rate(
    prefill: Prefill | None, population: Population, workload: Workload, cache: PrefixCache | None = None
) -> float:
    """Return how many of a workload's requests prefill engines can compute per second; infinity if prompts take no time."""
    if prefill is None:
        return math.inf
    mean = float(prefill.seconds(_computed(population, workload.record, cache)).mean())
    return prefill.engines / mean if mean > 0 else math.inf


def _computed(population: Population, record: Ints, cache: PrefixCache | None) -> Ints:
    tokens = population.prompt_tokens[record]
    return tokens if cache is None else tokens - cache.found(tokens)


def _poisson(rate: float, last: float, rng: np.random.Generator) -> Times:
    expected = int(last * rate * 1.2) + 100
    arrival = np.cumsum(rng.exponential(1 / rate, expected))
    while arrival[-1] < last:
        arrival = np.concatenate([arrival, arrival[-1] + np.cumsum(rng.exponential(1 / rate, expected))])
    return arrival[: np.searchsorted(arrival, last)]


def _as_logged(arrivals: Arrivals, rate: float, last: float, rng: np.random.Generator) -> tuple[Times, Ints]:
    """Go round in the log from a random request on until it is too late."""
    n = len(arrivals.gaps)
    order = (int(rng.integers(n)) + np.arange(n)) % n
    gaps = arrivals.gaps[order] / (arrivals.gaps.mean() * rate)
    rounds = int(last / gaps.sum()) + 1
    arrival = np.cumsum(np.tile(gaps, rounds))
    n_before = int(np.searchsorted(arrival, last))
    return arrival[:n_before], np.tile((order + 1) % n, rounds)[:n_before]


def _records(population: Population, arrival: Times, drift_at: float, rng: np.random.Generator) -> Ints:
    """Choose labels by share, and of each label's requests every one before any comes again."""
    labels = range(len(population.labels))
    label = rng.choice(labels, len(arrival), p=population.shares)
    if drift_at < math.inf:
        if population.later is None:
            raise ValueError("drift: these requests have no labels whose mix could change")
        label = np.where(arrival < drift_at, label, rng.choice(labels, len(arrival), p=population.later))
    record = np.empty(len(arrival), dtype=np.int64)
    for number in labels:
        members = np.flatnonzero(population.label == number)
        places = np.flatnonzero(label == number)
        if len(places):
            passes = [rng.permutation(members) for _ in range(-(-len(places) // len(members)))]
            record[places] = np.fromiter(itertools.chain.from_iterable(passes), np.int64)[: len(places)]
    return record


def _prefilled(prefill: Prefill, arrival: Times, tokens: Ints) -> Times:
    free = [0.0] * prefill.engines
    ready = np.empty(len(arrival))
    for at, (time, seconds) in enumerate(
        zip(arrival.tolist(), prefill.seconds(tokens).tolist(), strict=True)
    ):
        ready[at] = max(time, heapq.heappop(free)) + seconds
        heapq.heappush(free, float(ready[at]))
    return ready
