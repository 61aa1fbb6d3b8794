"""Sampled requests, joined with activations, in the signature log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlencode

import orjson

from eldr.contract import PATH_ACTIVATIONS, ROLE_DECODE, base_id
from eldr.siglog import Record, SignatureLog, pack_counts
from eldr.wire import ExpertCounts, WireError, decode_counts
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.registry import Registry
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.net.pool import Pool
from eldr_router.placement.placer import Placement
from eldr_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_MAX_PENDING = 1024
_POLL_SECONDS = 1.0
_PATIENCE = 5.0
_LIMIT = 256
_MAX_ANSWER = 64 << 20
_UNSUPPORTED_SECONDS = 60.0
_READ = 1 << 18


@dataclass(frozen=True, slots=True)
class Observation:
    """One served, sampled request."""

    request_id: str
    model: str
    counts: ExpertCounts
    placement: Placement
    prefill_seconds: float
    first_byte_seconds: float
    total_seconds: float
    time: float = 0.0
    deadline: float = 0.0


@dataclass(slots=True)
class _Cursor:
    """How far an engine's activation records were read."""

    after: str = "0"
    boot: str = ""
    unsupported_until: float = 0.0


class Joiner:
    """Keeps sampled requests until their activations come, or do not.

    Parameters
    ----------
    signature_log : SignatureLog or None
        None: nothing is kept.
    pool : Pool
    registry : Registry
    metrics : Metrics
    router : str
        This router's id; only its own requests are asked for.
    wall : callable
        Unix time.
    join_seconds : float
        How long to wait for a request's activations.
    sample_rate : callable
        Share of requests that are sampled at the moment; engines need not send the others.
    finished : callable
        Takes the activations of each finished request, and the loop's time.
    written : callable
        Takes how many records were written.
    """

    def __init__(
        self,
        signature_log: SignatureLog | None,
        *,
        pool: Pool,
        registry: Registry,
        metrics: Metrics,
        router: str,
        wall: Callable[[], float],
        join_seconds: float,
        sample_rate: Callable[[], float],
        finished: Callable[[ExpertCounts, float], None] = lambda _counts, _now: None,
        written: Callable[[int], None] = lambda _n: None,
    ) -> None:
        self._log = signature_log
        self._pool = pool
        self._registry = registry
        self._metrics = metrics
        self._router = router
        self._wall = wall
        self._join_seconds = join_seconds
        self._sample_rate = sample_rate
        self._finished = finished
        self._written = written
        self._pending: dict[str, Observation] = {}
        self._cursors: dict[Endpoint, _Cursor] = {}
        # one thread writes and reads: a reader never sees half a frame, and a slow disk never stops the event loop
        self._thread = ThreadPoolExecutor(1, "siglog")
        self.samples = 0 if signature_log is None else len(signature_log)

    @property
    def pending(self) -> int:
        """Observations that wait for their activations."""
        return len(self._pending)

    def observe(self, observation: Observation) -> None:
        """Take one request."""
        if self._log is None:
            return
        now = self._pool.loop.time()
        self._pending[observation.request_id] = replace(
            observation, time=self._wall() - observation.total_seconds, deadline=now + self._join_seconds
        )

    async def run(self) -> None:
        """Join and write, once a second, for ever."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            await self.step()

    async def step(self) -> None:
        """Poll engines for activations, and write what is complete or old."""
        if not self._pending:
            return
        known = self._registry.endpoints(ROLE_DECODE)
        self._cursors = {endpoint: self._cursors.get(endpoint) or _Cursor() for endpoint in known}
        now = self._pool.loop.time()
        owing = {observation.placement.endpoint for observation in self._pending.values()}
        asked = [e for e in known if e in owing and self._cursors[e].unsupported_until <= now]
        answers = await asyncio.gather(*(self._poll(endpoint, self._cursors[endpoint]) for endpoint in asked))
        joined = [pair for answer in answers for pair in answer]
        for _, counts in joined:
            self._finished(counts, now)
        await self._write(record(observation, counts) for observation, counts in joined)
        late = list(self._pending.values())
        excess = max(0, len(late) - _MAX_PENDING)
        given_up = [
            o for i, o in enumerate(late) if i < excess or o.deadline <= now or not self._may_come(o, now)
        ]
        for observation in given_up:
            del self._pending[observation.request_id]
        await self._write(record(observation, None) for observation in given_up)

    def _may_come(self, observation: Observation, now: float) -> bool:
        cursor = self._cursors.get(observation.placement.endpoint)
        return cursor is not None and cursor.unsupported_until <= now

    async def _poll(self, endpoint: Endpoint, cursor: _Cursor) -> list[tuple[Observation, ExpertCounts]]:
        joined: list[tuple[Observation, ExpertCounts]] = []
        try:
            while True:
                answer = await self._ask(endpoint, cursor)
                if answer is None:
                    cursor.unsupported_until = self._pool.loop.time() + _UNSUPPORTED_SECONDS
                    return joined
                records = answer["records"]
                if cursor.boot == answer["boot"]:
                    # not at the first answer of a boot: what was overwritten before then was none of ours
                    self._metrics.lost_activations.add(max(0, int(answer.get("lost", 0))))
                cursor.after, cursor.boot = str(answer["next"]), str(answer["boot"])
                joined += self._join(endpoint, records)
                if len(records) < _LIMIT:
                    return joined
        except (ConnectError, BrokenError, ValueError, KeyError, TypeError) as error:
            log.debug("no activations from %s: %s", endpoint.name, error)
            return joined

    async def _ask(self, endpoint: Endpoint, cursor: _Cursor) -> dict[str, Any] | None:
        query = urlencode(
            {
                "after": cursor.after,
                "prefix": f"eldr-{self._router}-",
                "limit": _LIMIT,
                "boot": cursor.boot,
                "rate": self._sample_rate(),
            }
        )
        target = f"{PATH_ACTIVATIONS}?{query}"
        got = await fetch(self._pool, endpoint.address, target, patience=_PATIENCE, limit=_MAX_ANSWER)
        if got.status == 404:
            return None
        answer = orjson.loads(got.body)
        if got.status != 200 or not isinstance(answer, dict):
            raise ValueError(f"status {got.status}")
        return answer

    def _join(self, endpoint: Endpoint, records: list[Any]) -> list[tuple[Observation, ExpertCounts]]:
        joined = []
        for fields in records:
            if not isinstance(fields, dict):
                log.warning("activations of %s: %.40r is no record", endpoint.name, fields)
                continue
            base = base_id(str(fields.get("request_id")))
            observation = self._pending.get(base)
            if observation is None or observation.placement.endpoint is not endpoint:
                continue  # an attempt that failed, or one that is not sampled any more
            try:
                counts = decode_counts(fields)
            except WireError as error:
                log.warning("activations of %s: %s", endpoint.name, error)
                continue
            del self._pending[base]
            joined.append((observation, counts))
        return joined

    async def _write(self, records: Iterable[Record]) -> None:
        batch = list(records)
        if self._log is None or not batch:
            return
        try:
            self.samples = await self._pool.loop.run_in_executor(self._thread, self._append, self._log, batch)
        except OSError as error:
            log.error("the signature log cannot be written, %d records lost: %s", len(batch), error)  # noqa: TRY400
            return
        self._written(len(batch))
        for item in batch:
            self._metrics.log_records("joined" if item.decode is not None else "missing")

    def _append(self, target: SignatureLog, batch: list[Record]) -> int:
        now = self._wall()
        for item in batch:
            target.append(item, now)
        return len(target)

    async def read(self) -> AsyncIterator[bytes]:
        """Yield every retained frame, oldest first, in any pieces."""
        if self._log is None:
            return
        loop = self._pool.loop
        for path in await loop.run_in_executor(self._thread, self._log.paths):
            try:
                file = await loop.run_in_executor(self._thread, _open, path)
            except FileNotFoundError:
                continue  # expired meanwhile
            with file:
                while data := await loop.run_in_executor(self._thread, file.read, _READ):
                    yield data

    async def close(self) -> None:
        """Write what is pending without waiting any longer."""
        pending, self._pending = list(self._pending.values()), {}
        await self._write(record(observation, None) for observation in pending)
        self._thread.shutdown()
        if self._log is not None:
            self._log.close()


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def record(observation: Observation, decode: ExpertCounts | None) -> Record:
    """Return the log record of an observation and, if known, its activations."""
    counts, placement = observation.counts, observation.placement
    layers, experts = counts.shape
    if decode is not None and decode.shape != counts.shape:
        decode = None
    return Record(
        request_id=observation.request_id,
        time=observation.time,
        model=observation.model,
        n_layers=layers,
        n_experts=experts,
        top_k=counts.top_k,
        prompt_tokens=counts.tokens,
        exact=counts.exact,
        prefill=pack_counts(counts.counts),
        engine=placement.endpoint.name,
        slot=placement.endpoint.spec.slot,
        policy=placement.policy,
        similarity=placement.similarity,
        in_flight=placement.in_flight,
        decode=None if decode is None else pack_counts(decode.counts),
        decode_tokens=0 if decode is None else decode.tokens,
        decode_exact=decode is not None and decode.exact,
        prefill_seconds=observation.prefill_seconds,
        first_byte_seconds=observation.first_byte_seconds,
        total_seconds=observation.total_seconds,
    )
