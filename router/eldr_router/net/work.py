"""What answers a request on a client connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from eldr_router.http.errors import RouterError


class Work(Protocol):
    """What answers a request."""

    def gone(self) -> None:
        """Stop: the client is gone. Nothing more may be written."""

    def pause(self) -> None:
        """Stop the source: the client does not keep up."""

    def resume(self) -> None:
        """Let the source go on."""


class Answerer(Protocol):
    """The side of a client connection that says how a request failed."""

    def respond_error(self, error: RouterError) -> None:
        """Write an error response, or cut one that has begun."""

    def fail(self) -> None:
        """Answer for a bug of the router."""


class TaskWork:
    """A coroutine as work; it is cancelled when the client leaves."""

    def __init__(self, connection: Answerer, coroutine: Coroutine[Any, Any, None]) -> None:
        self._connection = connection
        self._task = asyncio.get_running_loop().create_task(self._run(coroutine))

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except RouterError as error:
            self._connection.respond_error(error)
        except Exception:  # noqa: BLE001 - fail logs it
            self._connection.fail()

    def gone(self) -> None:
        """See :class:`Work`."""
        self._task.cancel()

    def pause(self) -> None:
        """Coroutines wait for ``writable`` themselves."""

    def resume(self) -> None:
        """Coroutines wait for ``writable`` themselves."""
