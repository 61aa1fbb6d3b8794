"""The simulated engine: prefill, KV transfer, and decode steps.

Step times follow the active experts.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.sim.batch import Batch, Seat, Sequence
from eldr.sim.kv import BlockPool, PrefillResults
from eldr.sim.telemetry import ActivationRing, EngineMetrics
from eldr.sim.traces import Traces
from eldr.sim.transfer import Transfer
from eldr.wire import ExpertCounts, encode_counts

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How a simulated engine behaves.

    Attributes
    ----------
    role : {"prefill", "decode"}
    model : str
        Served name.
    address : tuple of str and int
        Where its own HTTP server listens; prefill engines hand it out as side channel.
    speed : float
        Multiplies all times: 1 is a Qwen3-30B-A3B on an MI300X, 0.5 is twice as fast.
    lease : float
        Seconds a prefill result waits for its pull.
    max_num_seqs : int
        Largest batch.
    kv_blocks, block_size : int
        KV capacity.
    max_model_len : int
        Longest prompt plus output, tokens.
    prefill_seconds_per_token : float
        Before ``speed``; preempted requests take it again.
    context_seconds_per_token : float
        What a step takes longer for each token of context, before ``speed``; 0: the step-time model has it in what a request takes.
    drafts : int
        Tokens that a decode step drafts for each request.
    accepted : float
        Share of them that are accepted.
    first_step_delay : float
        Extra seconds between the pull and the first token; widens a window that failure tests aim at.
    activations : int
        Finished requests whose decode-time activations are kept for routers.
    heeds_deadlines : bool
        Whether it supports ``eldr_pull_before``, as an engine with the plug-in does.
    kv_key : str
        Engines with another key hold KV of another kind.
    """

    role: Role
    model: str
    address: tuple[str, int]
    speed: float = 1.0
    lease: float = 300.0
    max_num_seqs: int = 256
    kv_blocks: int = 16384
    block_size: int = 16
    max_model_len: int = 8192
    prefill_seconds_per_token: float = 2e-5
    context_seconds_per_token: float = 0.0
    drafts: int = 0
    accepted: float = 0.8
    first_step_delay: float = 0.0
    activations: int = 4096
    heeds_deadlines: bool = True
    kv_key: str = ""


class Engine:
    """A simulated prefill or decode engine."""

    def __init__(self, settings: EngineSettings, traces: Traces) -> None:
        if settings.max_model_len > settings.kv_blocks * settings.block_size:
            raise ValueError(
                f"max_model_len: {settings.max_model_len} tokens do not fit {settings.kv_blocks} blocks of "
                f"{settings.block_size}; raise kv_blocks or lower max_model_len"
            )
        self.settings = settings
        self.traces = traces
        self.step_time = replace(
            QWEN3_30B_MI300X.for_experts(traces.n_experts), per_token=settings.context_seconds_per_token
        )
        self.engine_id = str(uuid.uuid4())
        self.metrics = EngineMetrics(
            settings.model,
            traces.n_experts,
            keeps_deadlines=settings.heeds_deadlines,
            kv_blocks=settings.kv_blocks,
            block_size=settings.block_size,
        )
        self.ring = ActivationRing(settings.activations)
        self.pool = BlockPool(settings.kv_blocks, settings.block_size)
        self.results = PrefillResults(self.pool, settings.lease)
        self._batch = Batch(traces, settings.drafts, settings.accepted)
        self._prefilling = asyncio.Lock()
        self._seats: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._occupied = 0
        self._work = asyncio.Event()
        self._recompute = 0.0  # seconds that the next step takes longer
        self.transfer = Transfer(self.metrics, heeds_deadlines=settings.heeds_deadlines, key=settings.kv_key)

    async def run(self) -> None:
        """Run the step loop until cancelled."""
        loop = asyncio.get_running_loop()
        async with self.transfer:
            sweeper = loop.create_task(self._sweep())
            try:
                await self._loop(loop)
            finally:
                sweeper.cancel()

    async def _loop(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time()
        while True:
            self._grow()
            if not self._batch.running:
                self._work.clear()
                await self._work.wait()
                due = loop.time()
                continue
            size, active = len(self._batch.running), self._batch.begin()
            fed = size * (1 + self.settings.drafts)
            context = sum(sequence.context for sequence in self._batch.running)
            seconds = self.step_time.seconds(fed, active, context) * self.settings.speed + self._recompute
            self._recompute = 0.0
            due = max(due + seconds, loop.time())
            await asyncio.sleep(due - loop.time())
            if not self._batch.running:
                continue
            for sequence in self._batch.finish():
                self._finish(sequence)
            self.metrics.context.inc(context)
            self.metrics.fed_tokens.inc(fed)
            self.metrics.active_experts.observe(active)
            self.metrics.batch_size.observe(size)
            self.metrics.step_seconds.observe(seconds)

    def _grow(self) -> None:
        """Take the blocks that the next step writes; where there are none, who came last loses its own."""
        for sequence in tuple(self._batch.running):
            most = min(sequence.context + self.settings.drafts, sequence.prompt + sequence.max_tokens)
            need = self.pool.blocks_for(most) - sequence.seat.blocks
            while need > 0 and sequence.seat.waiting is None:
                if self.pool.take(need):
                    sequence.seat.blocks += need
                    break
                self._preempt(self._batch.running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        """Take a request's blocks; it waits first in line, and computes its tokens again."""
        self._batch.remove(sequence)
        seat, need = sequence.seat, self.pool.blocks_for(sequence.context)
        self.pool.give(seat.blocks)
        self._occupied -= 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seat.blocks, seat.waiting = 0, (need, future)
        future.add_done_callback(lambda _: self._resume(sequence))
        self._seats.appendleft(seat.waiting)
        self.metrics.preemptions.inc()

    def _resume(self, sequence: Sequence) -> None:
        if sequence.seat.waiting is None:
            return  # aborted meanwhile
        sequence.seat.blocks, sequence.seat.waiting = sequence.seat.waiting[0], None
        self._recompute += sequence.context * self.settings.prefill_seconds_per_token * self.settings.speed
        self._batch.add(sequence)
        self._work.set()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self.settings.lease / 4))
            if late := self.results.expire(loop.time()):
                self.metrics.kv_expired.inc(late)
                self._admit()

    def _finish(self, sequence: Sequence) -> None:
        fed = sequence.generated - 1
        if self.settings.role == "decode":
            counts = ExpertCounts(
                counts=self.traces.decode_counts(sequence.record, fed),
                top_k=self.traces.top_k,
                tokens=fed,
                exact=True,
            )
            self.ring.append(sequence.request_id, counts)

    @contextlib.asynccontextmanager
    async def seat(self, tokens: int) -> AsyncIterator[Seat]:
        """Wait for a place in the batch and for KV; release both at the end."""
        need = self.pool.blocks_for(tokens)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seats.append((need, future))
        self._admit()
        kept = Seat(need)
        try:
            await future
            yield kept
        finally:
            if kept.waiting is not None:
                kept.blocks, future = kept.waiting
                kept.waiting = None
            if future.done() and not future.cancelled():
                self._occupied -= 1
                self.pool.give(kept.blocks)
            else:
                self._seats = deque(item for item in self._seats if item[1] is not future)
            self._admit()

    def has_work(self) -> bool:
        """Return whether requests or results are left."""
        return bool(self._occupied or self._seats or len(self.results))

    def _admit(self) -> None:
        while self._seats and self._occupied < self.settings.max_num_seqs:
            need, future = self._seats[0]
            if not future.done():
                if not self.pool.take(need):
                    break
                self._occupied += 1
                future.set_result(None)
            self._seats.popleft()
        self.metrics.waiting.set(len(self._seats))
        self.metrics.running.set(self._occupied)
        self.metrics.kv_usage.set(self.pool.usage)

    async def prefill(self, tokens: int) -> None:
        """Spend the time that a prompt takes; prompts are processed one at a time."""
        seconds = (0.005 + tokens * self.settings.prefill_seconds_per_token) * self.settings.speed
        async with self._prefilling:
            self._recompute += seconds * bool(self._batch.running)  # the steps of others wait for it
            await asyncio.sleep(seconds)
        self.metrics.prompt_tokens.inc(tokens)

    def hold(self, request_id: str, kv: str, record: int, length: int, seat: Seat) -> dict[str, Any]:
        """Keep a finished prefill; return its ``kv_transfer_params``.

        The experts are those of the record, whatever the prompt's ``length`` is.
        """
        blocks, seat.blocks = seat.blocks, 0
        self.results.hold(request_id, kv, blocks, asyncio.get_running_loop().time())
        tokens = int(self.traces.prompt_tokens[record])
        counts = ExpertCounts(
            counts=self.traces.prefill_counts[record], top_k=self.traces.top_k, tokens=tokens, exact=True
        )
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.settings.address[0],
            "remote_port": self.settings.address[1],
            "tp_size": 1,
            "remote_num_tokens": length,
            "transfer_mode": "pull",
            "eldr": encode_counts(counts),
        }

    def serve_pull(self, request_id: str) -> str:
        """Answer a decode engine's pull."""
        kv = self.results.pull(request_id, asyncio.get_running_loop().time())
        self._admit()
        return kv

    async def start(self, sequence: Sequence) -> None:
        """Let a sequence join the running batch."""
        if self.settings.first_step_delay:
            await asyncio.sleep(self.settings.first_step_delay)
        self._batch.add(sequence)
        self._work.set()

    def stop(self, sequence: Sequence) -> None:
        """Take an aborted sequence out of the batch."""
        self._batch.remove(sequence)
