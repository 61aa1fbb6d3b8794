"""One request on a simulated engine, streamed or not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from eldr.contract import base_id
from eldr.sim import text
from eldr.sim.answers import Answer, Completion
from eldr.sim.batch import Sequence
from eldr.sim.engine import Engine
from eldr.sim.messages import Message
from eldr.sim.requests import BadRequest, Parsed
from eldr.sim.responses import Response
from eldr.sim.transfer import TransferError


class Generation:
    """One request being served."""

    def __init__(self, engine: Engine, request: Parsed, upstream_id: str) -> None:
        self._engine = engine
        self._request = request
        self._answer: Answer = _ANSWERS[request.api](
            request, upstream_id, engine.settings.model, int(time.time())
        )
        self.id = self._answer.id
        self._activation_id = base_id(request.request_id or upstream_id)
        self._records = [engine.traces.record_of(prompt) for prompt in request.prompts]
        self._lengths = [engine.traces.tokens_of(prompt) for prompt in request.prompts]
        self.prompt_tokens = sum(self._lengths)
        self.kv_transfer_params: dict[str, Any] | None = None
        limit = engine.settings.max_model_len
        for tokens in self._lengths:
            if tokens + request.max_tokens > limit:
                raise BadRequest(
                    f"This model's maximum context length is {limit} tokens. However, you requested "
                    f"{tokens + request.max_tokens} tokens ({tokens} in the prompt, {request.max_tokens} for the output)."
                )

    async def tokens(self) -> AsyncGenerator[tuple[int, str, bool]]:
        """Yield ``(choice, text, is_last)`` per step of a sequence.

        Closed early, it stops the sequences.

        Raises
        ------
        TransferError
            If the KV blocks could not be pulled; nothing was yielded then.
        """
        loop = asyncio.get_running_loop()
        arrived = last = loop.time()
        metrics = self._engine.metrics
        queue: asyncio.Queue[tuple[int, range, str]] = asyncio.Queue()
        sequences: list[Sequence] = []
        async with contextlib.AsyncExitStack() as stack:
            try:
                for choice, (prompt, record, size) in enumerate(
                    zip(self._request.prompts, self._records, self._lengths, strict=True)
                ):
                    seat = await stack.enter_async_context(self._engine.seat(size + 1))
                    kv = await self._obtain_kv(prompt, size)
                    if self._holds_for_remote:
                        self.kv_transfer_params = self._engine.hold(self.id, kv, record, size, seat)
                        yield choice, text.token(kv, 0), True
                        metrics.finished("length")
                        return
                    sequence = Sequence(
                        request_id=self._activation_id,
                        record=record,
                        kv=kv,
                        max_tokens=self._request.max_tokens,
                        on_tokens=partial(_put, queue, choice, kv),
                        prompt=size,
                        seat=seat,
                    )
                    sequences.append(sequence)
                    await self._engine.start(sequence)
                unfinished, latency = len(sequences), metrics.ttft
                while unfinished:
                    choice, indices, kv = await queue.get()
                    now = loop.time()
                    latency.observe(now - last)
                    last, latency = now, metrics.itl
                    metrics.generation_tokens.inc(len(indices))
                    is_last = indices.stop == self._request.max_tokens
                    unfinished -= is_last
                    yield choice, "".join(text.token(kv, index) for index in indices), is_last
                metrics.e2e.observe(loop.time() - arrived)
                metrics.finished("length")
            except (asyncio.CancelledError, GeneratorExit):
                metrics.finished("abort")
                raise
            finally:
                for sequence in sequences:
                    self._engine.stop(sequence)

    @property
    def _holds_for_remote(self) -> bool:
        params = self._request.kv_transfer_params or {}
        return self._engine.settings.role == "prefill" and bool(params.get("do_remote_decode"))

    async def _obtain_kv(self, prompt: str, tokens: int) -> str:
        params = self._request.kv_transfer_params or {}
        if self._engine.settings.role == "decode" and params.get("do_remote_prefill"):
            kv = await self._engine.transfer.pull(params)
            if kv is not None:
                return kv
        await self._engine.prefill(tokens)
        return text.fingerprint(prompt)

    async def unstreamed(self) -> dict[str, Any]:
        """Generate everything and return the answer object."""
        texts = [""] * len(self._request.prompts)
        async with contextlib.aclosing(self.tokens()) as tokens:
            async for choice, piece, _ in tokens:
                texts[choice] += piece
        total = len(texts) * self._request.max_tokens
        return self._answer.unstreamed(texts, self.prompt_tokens, total, self.kv_transfer_params)

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the SSE events of a streamed answer, or of a failed pull.

        A chat's opening comes before them, as in vLLM.
        """
        opened: set[int] = set()
        answer = self._answer
        for said in answer.before():
            yield said
        try:
            async with contextlib.aclosing(self.tokens()) as tokens:
                async for choice, piece, is_last in tokens:
                    if choice not in opened:
                        opened.add(choice)
                        for said in answer.opening(choice):
                            yield said
                    for said in answer.piece(choice, piece, "length" if is_last else None):
                        yield said
        except TransferError:
            for said in (*(() if opened else answer.opening(0)), *answer.failure()):
                yield said
            return
        for said in answer.end(self.prompt_tokens, len(self._records) * self._request.max_tokens):
            yield said


def _put(queue: asyncio.Queue[tuple[int, range, str]], choice: int, kv: str, indices: range) -> None:
    queue.put_nowait((choice, indices, kv))


_ANSWERS: dict[str, Callable[[Parsed, str, str, int], Answer]] = {
    "completions": Completion,
    "chat": Completion,
    "responses": Response,
    "messages": Message,
}
