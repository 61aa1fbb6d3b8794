"""``/healthz`` and ``/readyz``, on a port of their own and in the event loop: one that stands still answers neither."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

Fault = Callable[[], str]
"""Returns what is wrong; empty if nothing is."""


class Health:
    """Of an operator that works, or waits until it can."""

    def __init__(self) -> None:
        self.waits("the operator starts")

    def waits(self, why: str) -> None:
        """Take note that it does not work yet, which a restart would not change."""
        self.works(lambda: "", lambda: why)

    def works(self, stuck: Fault, not_ready: Fault) -> None:
        """Take who tells from now on."""
        self._stuck, self._not_ready = stuck, not_ready

    def stuck(self) -> str:
        """Return why ``/healthz`` is false."""
        return self._stuck()

    def not_ready(self) -> str:
        """Return why ``/readyz`` is false."""
        return self._not_ready()


@contextlib.asynccontextmanager
async def served(health: Health, host: str, port: int) -> AsyncIterator[None]:
    """Serve both paths until the end of the block; nothing for port 0.

    Raises
    ------
    OSError
        If the port cannot be bound.
    """
    if not port:
        yield
        return
    app = web.Application()
    app.router.add_get("/healthz", _answer(health.stuck))
    app.router.add_get("/readyz", _answer(health.not_ready))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


def _answer(fault: Fault) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        problem = fault()
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    return answer
