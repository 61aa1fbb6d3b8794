"""Pretend routers whose requests are real: captured activations, held against the very set that is active, and logged."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eldr import centroids, contract
from eldr.siglog import Record, frame
from eldr.sim import traces
from tests.operator.routers import PretendRouter
from tests.support.kube import Kube
from tests.support.records import make_record


class LoggingRouter(PretendRouter):
    """Meets requests with every look, and serves their log.

    ``mix`` are the captured records that requests are drawn from, ``requests`` how many come with a look; ``spoil`` makes other
    records of those that it logs. ``is_read`` is set when somebody asks for the log, who then waits for ``may_answer``.
    """

    def __init__(self, kube: Kube, deployment: str) -> None:
        super().__init__(kube, deployment)
        self.mix: Sequence[int] = ()
        self.requests = 100
        self.records: list[Record] = []
        self.spoil: Callable[[int, Record], Record] = lambda _, record: record
        self.is_read = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._captured = traces.load()
        self._rng = np.random.default_rng(1)
        self._numbers = itertools.count()
        self._fits: dict[str, list[tuple[float, int]]] = {}

    def restart(self) -> None:
        """Begin as a new process does: counts are gone, the log is on disk."""
        self.is_holding = False
        self._traffic = self._active = None

    def meet(self, number: int) -> list[int]:
        """Serve and log requests of the mix."""
        drawn = [int(record) for record in self._rng.choice(np.asarray(self.mix), number)]
        for record in drawn:
            n = next(self._numbers)
            made = make_record(
                self._captured, n, record, model=self.deployment, time=time.time(), in_flight=12
            )
            self.records.append(self.spoil(n, made))
        self.samples = len(self.records)
        return drawn

    def _count(self, epoch: int) -> dict[str, Any] | None:
        drawn = self.meet(self.requests) if self.mix else []
        looks = self._looks() if self._active else []
        self.kinds = tuple((*looks[record], 1) for record in drawn) if looks else ()
        return super()._count(epoch)

    def answer_log(self) -> bytes:
        self.is_read.set()
        self.may_answer.wait(60)
        return b"".join(frame(record) for record in self.records)

    def _looks(self) -> list[tuple[float, int]]:
        """Return the best similarity and its slot of every captured record, to the set in use."""
        assert self._active is not None
        digest = self._active["digest"]
        if digest not in self._fits:
            shards = [
                base64.b64decode(self.kube.get("ConfigMap", shard["name"])["binaryData"][contract.SHARD_KEY])
                for shard in self._active["shards"]
            ]
            found = centroids.load(
                centroids.join(shards, [shard["sha256"] for shard in self._active["shards"]])
            )
            scores = np.stack([found.similarities(counts) for counts in self._captured.prefill_counts])
            self._fits[digest] = list(
                zip(
                    np.minimum(scores.max(axis=1), 0.999).tolist(),
                    scores.argmax(axis=1).tolist(),
                    strict=True,
                )
            )
        return self._fits[digest]
