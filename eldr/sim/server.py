"""The HTTP surface of a simulated engine: what routers see of vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from eldr import contract
from eldr.engine_limit import NO_LIMIT, Bound, EngineLimit, InFlight, hold_to
from eldr.sim.answers import error_body
from eldr.sim.engine import Engine, EngineSettings
from eldr.sim.requests import Api, BadRequest, conversation, parse
from eldr.sim.serving import Generation
from eldr.sim.traces import Traces
from eldr.sim.transfer import TransferError

VLLM_VERSION = "0.32.0"
_PATHS: dict[str, Api] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _error(message: str, kind: str, status: int) -> Response:
    return _json(error_body(message, kind, status), status)


class EngineApp:
    """Routes of one engine."""

    def __init__(self, settings: EngineSettings, traces: Traces) -> None:
        self._engine = Engine(settings, traces)
        self._draining = False

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    def has_work(self) -> bool:
        """Return whether work is left."""
        return self._engine.has_work()

    def app(self) -> Starlette:
        """Return the ASGI application."""
        app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/ping", self.health, methods=["GET", "POST"]),
                Route("/version", self.version),
                Route("/load", self.load),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                *(
                    Route(path, partial(self._generate, api=api), methods=["POST"])
                    for path, api in _PATHS.items()
                ),
                Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
                Route(contract.PATH_ACTIVATIONS, self.activations),
                Route("/sim/v1/pull", self.pull, methods=["POST"]),
            ],
            lifespan=self._lifespan,
        )
        settings, metrics = self._engine.settings, self._engine.metrics
        if settings.heeds_deadlines:
            app.add_middleware(EngineLimit, state=app.state)
            limit = settings.max_num_seqs if settings.role == "decode" else NO_LIMIT
            hold_to(app.state, Bound(InFlight(), limit, metrics.in_flight.set, metrics.refused.inc))
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._engine.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def health(self, _: Request) -> Response:
        """Answer 200 while the engine lives."""
        return Response()

    async def version(self, _: Request) -> Response:
        """Return the version of vLLM that this imitates."""
        return _json({"version": f"{VLLM_VERSION}+eldr.sim"})

    async def load(self, _: Request) -> Response:
        """Answer as vLLM does without ``--enable-server-load-tracking``."""
        return _json({"server_load": 0})

    async def metrics(self, _: Request) -> Response:
        """Serve Prometheus metrics."""
        return Response(self._engine.metrics.render(), media_type="text/plain; version=0.0.4")

    async def models(self, _: Request) -> Response:
        """List the one model."""
        settings = self._engine.settings
        model = {
            "id": settings.model,
            "object": "model",
            "owned_by": "vllm",
            "max_model_len": settings.max_model_len,
        }
        return _json({"object": "list", "data": [model]})

    async def count_tokens(self, request: Request) -> Response:
        """Serve ``/v1/messages/count_tokens`` by the captured prompt."""
        try:
            prompt = conversation(await request.body(), model=self._engine.settings.model)
        except BadRequest as error:
            return _error(str(error), error.kind, error.status)
        traces = self._engine.traces
        return _json({"input_tokens": traces.tokens_of(prompt)})

    async def _generate(self, request: Request, api: Api) -> Response:
        if self._draining:  # in the words of a vLLM that finishes its requests after SIGTERM
            return _error("cannot schedule new futures after shutdown", "InternalServerError", 500)
        parsed = None
        try:
            parsed = parse(await request.body(), api=api, model=self._engine.settings.model)
            upstream_id = request.headers.get(contract.HEADER_REQUEST_ID) or uuid.uuid4().hex
            generation = Generation(self._engine, parsed, upstream_id)
        except BadRequest as error:
            kv = error.kv_transfer_params if parsed is None else parsed.kv_transfer_params
            if kv and kv.get("do_remote_prefill"):
                self._engine.transfer.release(kv)  # vLLM does so for each body that it could read
            return _error(str(error), error.kind, error.status)
        # vLLM answers a streamed prefill without kv_transfer_params, so there is no special case for it here.
        if parsed.stream:
            return StreamingResponse(_stream(generation), media_type="text/event-stream")
        return await _unstreamed(generation, request)

    async def activations(self, request: Request) -> Response:
        """Serve decode-time activations by cursor."""
        query = request.query_params
        try:
            after, limit = int(query.get("after", 0)), int(query.get("limit", 64))
            rate = float(query.get("rate", 1))
        except ValueError:
            return _error("after, limit: expected integers; rate: a number", "BadRequestError", 400)
        if after < 0 or not 1 <= limit <= 256 or not 0 <= rate <= 1:
            message = "after: expected >= 0; limit: expected 1..256; rate: expected 0..1"
            return _error(message, "BadRequestError", 400)
        prefix, boot = query.get("prefix", ""), query.get("boot", "")
        return _json(self._engine.ring.read(after=after, prefix=prefix, limit=limit, boot=boot, rate=rate))

    async def pull(self, request: Request) -> Response:
        """Stand in for NIXL's side channel: hand over a prefill's KV."""
        body = orjson.loads(await request.body())
        if body["engine_id"] != self._engine.engine_id:
            return _error("NIXL_ERR_REMOTE_DISCONNECT", "InternalServerError", 409)
        if body.get("kv_key", "") != self._engine.settings.kv_key:
            return _error("NIXL compatibility hash mismatch", "InternalServerError", 409)
        return _json({"kv": self._engine.serve_pull(body["request_id"])})


async def _stream(generation: Generation) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(generation.events()) as events:
        async for chunk in events:
            yield chunk


async def _unstreamed(generation: Generation, request: Request) -> Response:
    answer = asyncio.ensure_future(generation.unstreamed())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return Response(status_code=499)
        return _json(answer.result())
    except TransferError:
        return _error("Internal server error", "InternalServerError", 500)
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
