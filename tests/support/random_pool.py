"""A pool whose batches are random, and what a router measures placement to save there: nothing, give or take its error."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eldr.contract import BATCH_BUCKETS
from eldr.core.saving import Batches, Saving
from eldr.sim.traces import Traces
from eldr.wire import ExpertCounts
from eldr_router.placement.saving import Savings

STEP_SECONDS, ASKED_SECONDS, LOOK_SECONDS = 0.02, 10.0, 60.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines that are always full, and how much of their requests a router logs.

    Attributes
    ----------
    engines, batch : int
    tokens : int
        Mean length of an answer; lengths are exponential.
    logged : float
        Share of the requests.
    """

    engines: int
    batch: int
    tokens: int
    logged: float

    def looks(self, traces: Traces, seconds: float, rng: np.random.Generator) -> Iterator[Saving | None]:
        """Yield what is measured once a minute; of every second one step is drawn."""
        savings, shape = Savings(), (self.engines, self.batch)
        counted = functools.cache(
            lambda record: ExpertCounts(
                traces.decode_counts(record, self.tokens), traces.top_k, self.tokens, True
            )
        )
        records = rng.integers(0, len(traces), shape)
        left = rng.exponential(self.tokens * STEP_SECONDS, shape)
        active, steps = np.zeros(self.engines), np.zeros((self.engines, len(BATCH_BUCKETS)))
        bucket, each = int(np.searchsorted(BATCH_BUCKETS, self.batch)), 1.0 / STEP_SECONDS
        engine, layer = np.arange(self.engines)[:, None, None, None], np.arange(traces.n_layers)[:, None]
        for second in range(1, int(seconds) + 1):
            drawn = traces.decode_experts[records, rng.integers(0, traces.decode_experts.shape[1], shape)]
            used = np.zeros((self.engines, traces.n_layers, traces.n_experts), dtype=bool)
            used[engine, layer, drawn] = True
            active += each * used.sum((1, 2)) / traces.n_layers
            steps[:, bucket] += each
            left -= 1.0
            for at in np.argwhere(left <= 0.0):
                if rng.random() < self.logged:
                    savings.finished(counted(int(records[tuple(at)])), second)
                records[tuple(at)] = rng.integers(0, len(traces))
                left[tuple(at)] = rng.exponential(self.tokens * STEP_SECONDS)
            if second % ASKED_SECONDS == 0:
                for number in range(self.engines):
                    sizes = tuple(steps[number])
                    told = Batches(float(active[number]), sizes, sum(sizes) * self.batch)
                    savings.observe(f"d{number}", told, float(second))
            if second % LOOK_SECONDS == 0:
                yield savings.prepare(float(second))()

    def told(self) -> str:
        """Return it in words."""
        return f"{self.engines} x {self.batch}, {self.tokens} tokens, {self.logged:.1%} logged"


POOLS = (
    Pool(4, 8, 200, 0.1),  # many short requests
    Pool(2, 8, 1000, 0.1),  # as installed
    Pool(4, 8, 1000, 0.025),  # four routers
    Pool(2, 8, 2000, 0.1),
    Pool(4, 16, 1000, 0.1),
    Pool(8, 32, 300, 1.0),
)
