"""Traffic: streamed chat requests, every answer checked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import numpy as np
import orjson

from eldr.clients import UNBOUNDED
from eldr.contract import HEADER_LOG
from eldr_demo.answers import AnswerError, Prompt, read_stream
from eldr_demo.arrivals import Arrivals

READ_TIMEOUT = 120.0
CONNECT_TIMEOUT = 30.0
"""Generous, because engines, fits and this load may share two cores: a load that is starved must not blame the routers."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the next requests look like.

    Attributes
    ----------
    name : str
        Phase that the requests belong to.
    draw : callable
        Makes the prompt of the n-th request.
    logged : bool
        Whether routers may write them to the signature log.
    """

    name: str
    draw: Callable[[np.random.Generator, int], Prompt]
    logged: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished request; times in seconds on the loop's clock.

    Attributes
    ----------
    number : int
        Counts the requests of the phase: the same number is the same request in every phase of a mix.
    error : str or None
        Why it failed; a wrong answer is a failure.
    """

    phase: str
    number: int
    started: float
    first_token: float
    ended: float
    tokens: int
    error: str | None

    @property
    def tpot(self) -> float:
        """Time per output token after the first, seconds."""
        return (self.ended - self.first_token) / max(1, self.tokens - 1)


@dataclass(slots=True)
class Load:
    """Load generator.

    Parameters
    ----------
    endpoints : callable
        Returns the base URLs of the ready routers: what a Service would balance over.
    tokens : int
        Output tokens of a request that does not ask for another number.
    """

    endpoints: Callable[[], Sequence[str]]
    model: str
    arrivals: Arrivals
    tokens: int
    seed: int = 1
    outcomes: list[Outcome] = field(default_factory=list)
    _workload: Workload | None = None
    _number: int = 0
    _rng: np.random.Generator = field(init=False)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def switch(self, workload: Workload) -> None:
        """Send other requests from now on, with arrivals and draws as after every switch."""
        self._workload, self._number = workload, 0
        self._rng = np.random.default_rng(self.seed)
        self.arrivals.restart()

    @property
    def in_flight(self) -> int:
        """Requests without an answer yet."""
        return len(self._running)

    async def run(self, stop: asyncio.Event) -> None:
        """Send requests until told to stop, then wait for the last answers."""
        loop = asyncio.get_running_loop()
        timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        async with httpx.AsyncClient(limits=UNBOUNDED, timeout=timeout) as client:
            for unique in itertools.count():
                if not await self.arrivals.next(stop):
                    break
                workload = self._workload
                if workload is None:
                    raise RuntimeError("no workload: call switch() before run()")
                prompt = workload.draw(self._rng, unique)
                task = loop.create_task(self._request(client, workload, prompt, self._number))
                self._number += 1
                self._running.add(task)
                task.add_done_callback(self._ended)
            await asyncio.gather(*self._running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.arrivals.done()

    async def _request(
        self, client: httpx.AsyncClient, workload: Workload, prompt: Prompt, number: int
    ) -> None:
        loop = asyncio.get_running_loop()
        tokens = prompt.tokens or self.tokens
        body = orjson.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": prompt.text}],
                "max_tokens": tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                **prompt.fields,
            }
        )
        headers = {"content-type": "application/json"} | ({} if workload.logged else {HEADER_LOG: "off"})
        started = first = loop.time()
        received = bytearray()
        error: str | None = None
        try:
            async with self._stream(client, body, headers, number) as response:
                async for chunk in response.aiter_raw():
                    if not received:
                        first = loop.time()
                    received += chunk
                answer = read_stream(response.status_code, bytes(received))
                error = prompt.verify(answer, tokens)
        except AnswerError as problem:
            error = str(problem)
        except (httpx.HTTPError, NoEndpointError) as problem:
            took = loop.time() - started
            error = f"{type(problem).__name__}: {problem} ({len(received)} bytes of the answer, {took:.1f} s)"
        self.outcomes.append(Outcome(workload.name, number, started, first, loop.time(), tokens, error))

    def _stream(
        self, client: httpx.AsyncClient, body: bytes, headers: dict[str, str], number: int
    ) -> FailOver:
        endpoints = list(self.endpoints())
        start = number % max(1, len(endpoints))
        return FailOver(client, endpoints[start:] + endpoints[:start], body, headers)


class NoEndpointError(Exception):
    """No router accepted the connection."""


class FailOver:
    """A streamed POST to the first endpoint that accepts the connection, as behind a Service."""

    def __init__(
        self, client: httpx.AsyncClient, urls: list[str], body: bytes, headers: dict[str, str]
    ) -> None:
        self._client = client
        self._urls = urls
        self._body = body
        self._headers = headers
        self._response: httpx.Response | None = None

    async def __aenter__(self) -> httpx.Response:
        for url in self._urls:
            request = self._client.build_request(
                "POST", f"{url}/v1/chat/completions", content=self._body, headers=self._headers
            )
            try:
                self._response = await self._client.send(request, stream=True)
            except httpx.ConnectError:
                continue
            return self._response
        raise NoEndpointError(f"none of {len(self._urls)} routers accepted the connection")

    async def __aexit__(self, *_: object) -> None:
        if self._response is not None:
            await self._response.aclose()
