"""What the operator has to read: every watched kind, in each namespace that it serves; and which of it cannot be read."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from eldr_operator.errors import ApiError, ApiUnavailableError, OperatorError
from eldr_operator.kube.api import RESOURCES, Api
from eldr_operator.kube.cache import WATCHED, Cache, lean

logger = logging.getLogger(__name__)

_AT_ONCE = 8
_NOT_YET = "not listed yet"
_WATCH_FAILS = "its watch fails; changes are seen at the next list"
_PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0)
_LONGEST_PAUSE_SECONDS = 30.0
_WATCHER = "watcher for "
"""How kopf names the task of a watch, before ``plural.version.group@namespace``."""


class Stream(NamedTuple):
    """A kind in a namespace, or in all of them where ``namespace`` is None."""

    kind: str
    namespace: str | None

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{RESOURCES[self.kind].plural} {where}"


class Streams:
    """Lists what the cache holds, stream by stream: one that cannot be read leaves the others alone.

    Parameters
    ----------
    namespaces : collection of str
        Empty for all.
    """

    def __init__(self, api: Api, cache: Cache, namespaces: Collection[str]) -> None:
        self._api = api
        self._cache = cache
        self._unlisted: dict[Stream, OperatorError | None] = {
            Stream(kind, namespace): None for namespace in namespaces or (None,) for kind in WATCHED
        }
        self._streams = tuple(self._unlisted)
        self._absent: set[str] = set()
        self.watches = Watches(self._streams)

    @property
    def blind(self) -> Mapping[Stream, str]:
        """Why each stream that should be read is not; those of a namespace that does not exist are left out."""
        # copies: metrics are collected in a thread of their own, while lists change these
        unread = dict.fromkeys(self.watches.failing.copy(), _WATCH_FAILS)
        unread |= {stream: str(error or _NOT_YET) for stream, error in self._unlisted.copy().items()}
        return {stream: why for stream, why in unread.items() if stream.namespace not in self._absent}

    def unlisted(self, namespace: str) -> frozenset[str]:
        """Return the kinds of which nothing is known in a namespace, or only what was there once."""
        return frozenset(stream.kind for stream in self._unlisted if stream.namespace in {None, namespace})

    def refused(self, namespace: str) -> dict[str, str]:
        """Return the kinds that the API server refuses to list in a namespace, and what to do about each."""
        return {
            stream.kind: f"the operator cannot list {stream}: {error}; give its service account the chart's rights"
            for stream, error in self._unlisted.items()
            if stream.namespace in {None, namespace} and isinstance(error, ApiError)
        }

    async def list(self, *, everything: bool, ended: Callable[[], object] = lambda: None) -> None:
        """List streams into the cache.

        Parameters
        ----------
        everything : bool
            False lists only those that could not be read, or whose watch has failed since they were listed.
        ended : callable
            Is called each time that one of the requests has ended, well or not: each page of a list is one.
        """
        wanted = self._streams if everything else {*self._unlisted, *self.watches.failed}
        slots = asyncio.Semaphore(_AT_ONCE)

        async def listed(stream: Stream) -> Stream | None:
            try:
                return await self._list(stream, slots, ended)
            finally:
                ended()

        refused = set(filter(None, await asyncio.gather(*map(listed, wanted))))
        for namespace in {stream.namespace for stream in wanted} - {None}:
            await self._look_for(
                str(namespace), is_refused=any(one.namespace == namespace for one in refused)
            )
            ended()

    async def _list(
        self, stream: Stream, slots: asyncio.Semaphore, ended: Callable[[], object]
    ) -> Stream | None:
        """List one stream; return it where the API server refused that."""
        async with slots:
            self._cache.begin_list(*stream)
            has_gap = stream in self.watches.failing  # what goes before it is back is told by nobody
            try:
                listed, version = await self._api.list(
                    *stream, labels=WATCHED[stream.kind], keep=partial(lean, stream.kind), came=ended
                )
                self._cache.replace(*stream, listed, version)
            except OperatorError as error:
                if str(self._unlisted.get(stream)) != str(error):
                    logger.warning("cannot list %s: %s", stream, error)
                self._unlisted[stream] = error
                return stream if isinstance(error, ApiError) else None
        if not has_gap:
            self.watches.failed.discard(stream)
        if self._unlisted.pop(stream, None) is not None:
            logger.info("can list %s again", stream)
        return None

    async def _look_for(self, namespace: str, *, is_refused: bool) -> None:
        """Find out whether a namespace is absent: rights that were given in it went with it."""
        is_absent = is_refused and await self._is_absent(namespace)
        if is_absent and namespace not in self._absent:
            logger.warning("namespace %s does not exist; it is served as soon as it does", namespace)
            self._absent.add(namespace)
            for kind in WATCHED:
                self._cache.replace(kind, namespace, [], None)
        elif not is_absent:
            self._absent.discard(namespace)

    async def _is_absent(self, namespace: str) -> bool:
        try:
            await self._api.request("GET", f"/api/v1/namespaces/{namespace}")
        except ApiError as error:
            return error.status == 404
        except ApiUnavailableError:
            pass
        return False


class Watches:
    """kopf's pauses between the attempts of a request: they never end, and so no watch does; notes which watches fail, or did.

    kopf takes the next pause when an attempt begins, so that the second one says that the first has failed, and drops
    the iterator when the request has an answer. It does so in a thread of its own.
    """

    def __init__(self, streams: Collection[Stream]) -> None:
        self._names = {f"{_WATCHER}{_resource(stream.kind)}@{stream.namespace}": stream for stream in streams}
        self.failing: set[Stream] = set()
        self.failed: set[Stream] = set()

    def fails(self, stream: Stream) -> None:
        """Take that a watch fails: what goes meanwhile is seen by a list after it is back."""
        self.failing.add(stream)
        self.failed.add(stream)

    def end(self) -> None:
        """Take that all watches have ended, as kopf ends them when one gets a 404: each fails until it has an answer again."""
        for stream in self._names.values():
            self.fails(stream)

    def __iter__(self) -> Iterator[float]:
        task = asyncio.current_task()
        stream = self._names.get(task.get_name()) if task else None
        try:
            for pause in itertools.chain(_PAUSES_SECONDS, itertools.repeat(_LONGEST_PAUSE_SECONDS)):
                yield pause
                if stream:
                    self.fails(stream)
        finally:
            if stream:
                self.failing.discard(stream)


def _resource(kind: str) -> str:
    api_version, plural = RESOURCES[kind]
    group, _, version = api_version.rpartition("/")
    return ".".join(filter(None, (plural, version, group)))
