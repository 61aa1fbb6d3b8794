"""Runs kopf in a thread and an event loop of its own: where it ends, it cancels every task of its loop that is younger."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import kopf

from eldr_operator import handlers
from eldr_operator.kube.streams import Watches
from eldr_operator.manager import Manager
from eldr_operator.settings import Settings

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody caught, but for what the end of a loop makes of a watch that has just told something: it ends anyway."""
    if "asyncgen" in context:
        logger.debug("%s: %r", context["message"], context.get("exception"))
    else:
        loop.default_exception_handler(context)


@contextlib.asynccontextmanager
async def watched(
    settings: Settings,
    manager: Manager,
    watches: Watches,
    check: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncIterator[None]:
    """Tell the manager what changes, until the end of the block.

    Parameters
    ----------
    check : callable
        Raises while resources are not served: kopf watches only what is there when it begins.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()
    cancel: list[Callable[[], object]] = []

    def changed(*args: object, **named: object) -> None:
        loop.call_soon_threadsafe(functools.partial(manager.changed, *args, **named))  # type: ignore[arg-type]

    async def watch() -> None:
        task, own = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - it runs in one
        own.set_exception_handler(_handle)
        cancel[:] = [functools.partial(own.call_soon_threadsafe, task.cancel)]
        if not stop.is_set():
            # Without a stop flag: kopf would wait for it in a thread, and not end after a failure before it is set.
            await kopf.operator(
                registry=handlers.registry(changed, watches),
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
            )

    def run() -> None:
        while not stop.is_set():
            try:
                asyncio.run_coroutine_threadsafe(check(), loop).result()
                asyncio.run(watch())
            except asyncio.CancelledError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, lists go on meanwhile
                watches.end()
                logger.warning("watches ended: %s; again in %.0f s", error, _AGAIN_SECONDS)
                stop.wait(_AGAIN_SECONDS)

    thread = threading.Thread(target=run, name="watches", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        for each in cancel:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                each()
        await asyncio.to_thread(thread.join)
