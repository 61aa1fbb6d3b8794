"""``/healthz`` and ``/readyz``, on a port of their own and in the event loop: one that stands still answers neither."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web


@contextlib.asynccontextmanager
async def served(
    stuck: Callable[[], str], not_ready: Callable[[], str], host: str, port: int
) -> AsyncIterator[None]:
    """Serve both paths until the end of the block; nothing for port 0.

    Parameters
    ----------
    stuck, not_ready : callable
        Return why ``/healthz`` and ``/readyz`` are false; empty if they are not.

    Raises
    ------
    OSError
        If the port cannot be bound.
    """
    if not port:
        yield
        return
    app = web.Application()
    app.router.add_get("/healthz", _answer(stuck))
    app.router.add_get("/readyz", _answer(not_ready))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


def _answer(fault: Callable[[], str]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        found = fault()
        return web.Response(text=f"{found or 'ok'}\n", status=503 if found else 200)

    return answer
