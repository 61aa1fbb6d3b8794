"""A Kubernetes resource, listed and watched for ever.

Only a watch that has lived for a while counts as success. A list proves little: a server may answer every list and refuse
or end every watch, and a router that took heart from the list would ask again without a pause.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from eldr_router.sources.api import ApiError, Object
from eldr_router.sources.backoff import Backoff

_FIRST_SECONDS = 0.25
_MOST_SECONDS = 10.0
_GOOD_SECONDS = 2.0
"""A watch that lives so long works."""
_SHORT_WATCHES = 3
"""So many watches in a row that end early are logged; one or two are a server that restarts."""
_GONE = 410
_BUSY = 429
_UNAUTHORIZED = (401, 403)

Listing = Callable[[], Awaitable[str]]
Watch = Callable[[str], AbstractAsyncContextManager[AsyncIterator[Object]]]


class Follower:
    """Keeps up with one resource.

    Parameters
    ----------
    name : str
        Stands before every problem.
    listing : callable
        Reads and publishes everything; returns the resource version.
    watch : callable
        Opens a watch from a version on.
    take : callable
        Gets every event but bookmarks.
    report : callable
        Gets the problem, or None when there is none any more, and whether the API server refuses the credentials.
    """

    def __init__(
        self,
        name: str,
        listing: Listing,
        watch: Watch,
        take: Callable[[Object], None],
        report: Callable[[str | None, bool], None],
    ) -> None:
        self._name = name
        self._listing = listing
        self._watch = watch
        self._take = take
        self._report = report
        self._version: str | None = None
        self._lived = False
        self._backoff = Backoff(_FIRST_SECONDS, _MOST_SECONDS, random.random)

    async def run(self) -> None:
        """Follow for ever."""
        while True:
            self._lived = False
            try:
                await self._once()
            except ApiError as error:
                wait = self._failed(error)
            else:
                wait = 0.0 if self._lived else self._short()
            await asyncio.sleep(wait)

    async def _once(self) -> None:
        if self._version is None:
            self._version = await self._listing()
        async with self._watch(self._version) as events:
            timer = asyncio.get_running_loop().call_later(_GOOD_SECONDS, self._works)
            try:
                async for event in events:
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event)
            finally:
                timer.cancel()

    def _works(self) -> None:
        self._lived = True
        self._backoff.worked()
        self._report(None, False)

    def _failed(self, error: ApiError) -> float:
        if error.status != _BUSY:
            self._version = None  # a server that comes back may have been restored from a backup: read it all
        if error.status == _GONE and not self._backoff.failures:
            self._backoff.failed()
            return 0.0  # ordinary after a quiet hour; a second one in a row is not
        self._report(f"{self._name}: {error}", error.status in _UNAUTHORIZED)
        return max(self._backoff.failed(), error.retry_after)

    def _short(self) -> float:
        wait = self._backoff.failed()
        if self._backoff.failures >= _SHORT_WATCHES:
            self._report(
                f"{self._name}: the API server ends every watch within {_GOOD_SECONDS:g} s; changes come late",
                False,
            )
        return wait
