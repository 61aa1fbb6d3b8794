"""The API server as clients meet it: latency, failures, watches that are late or break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote

from eldr import contract
from eldr_operator.errors import ApiError, ApiUnavailableError
from eldr_operator.kube.api import Api
from eldr_operator.kube.cache import WATCHED
from tests.fakes.kubernetes.store import Object, Store, kind_of, matches
from tests.support.kube import Refused


class Asked(NamedTuple):
    """What a request asks for, but for its body."""

    method: str
    kind: str
    namespace: str
    name: str
    subresource: str

    @property
    def is_write(self) -> bool:
        return self.method != "GET"


Fault = Callable[[Asked], Exception | float | None]
"""Of a request: what it fails with, or for how many seconds it waits; those of a client are asked one after the other."""


class Client(Api):
    """What one program is connected by.

    Parameters
    ----------
    draw : random.Random
        How long each way takes.
    """

    def __init__(self, store: Store, draw: random.Random) -> None:
        self._store, self._draw = store, draw
        self.faults: list[Fault] = []
        self.stands = asyncio.Event()
        self.stands.set()

    async def request(
        self,
        method: str,
        url: str,
        *,
        query: Iterable[tuple[str, str]] = (),
        body: Object | Sequence[Object] | None = None,
        accept: str = "",
        content: str = "",
    ) -> Object:
        """Answer as the API server does; what is asked may have happened although no answer comes."""
        kind, namespace, name, subresource = _parsed(url)
        await self._way()
        for fault in [*self.faults]:
            found = fault(Asked(method, kind, namespace, name, subresource))
            if isinstance(found, Exception):
                raise found
            if found:
                await asyncio.sleep(found)
        asked = dict(query)
        try:
            answer = self._answer(method, kind, namespace, name, subresource, asked, body, content)
        except Refused as refusal:
            await self._way()
            raise ApiError(refusal.status, HTTPStatus(refusal.status).phrase, str(refusal)) from None
        await self._way()
        return answer

    async def _way(self) -> None:
        await self.stands.wait()
        await asyncio.sleep(self._draw.expovariate(200))
        await self.stands.wait()

    def _answer(
        self,
        method: str,
        kind: str,
        namespace: str,
        name: str,
        subresource: str,
        query: dict[str, str],
        body: Any,
        content: str,
    ) -> Object:
        store, manager = self._store, query.get("fieldManager", contract.FIELD_MANAGER)
        key = (kind, namespace, name)
        match method:
            case "GET" if name:
                return store.get(*key)
            case "GET":
                listed = store.list(kind, namespace or None, unquote(query.get("labelSelector", "")))
                fields = filter(None, query.get("fieldSelector", "").split(","))
                wanted = [part.partition("=")[::2] for part in fields]
                items = [one for one in listed if all(_field(one, path) == value for path, value in wanted)]
                return {"items": items, "metadata": {"resourceVersion": str(store.version)}}
            case "POST":
                return store.create({**body, "kind": kind}, manager)
            case "PUT":
                return store.replace(body, manager, subresource)
            case "DELETE":
                store.delete(key, ((body or {}).get("preconditions") or {}).get("uid", ""))
                return {}
            case "PATCH" if "json-patch" in content:
                return store.json_patch(key, list(body), manager)
            case "PATCH":
                return store.apply({**body, "kind": kind}, manager, subresource)
        raise AssertionError(method)


def _parsed(url: str) -> tuple[str, str, str, str]:
    parts = url.strip("/").split("/")
    version, rest = (parts[1], parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
    namespace = rest[1] if rest[0] == "namespaces" else ""
    plural, name, subresource, *_ = (rest[2:] if namespace else rest) + ["", ""]
    return kind_of(version, plural), namespace, name, subresource


def _field(live: Object, path: str) -> str:
    node: Any = live
    for part in path.split("."):
        node = (node or {}).get(part)
    return str(node)


class Watches:
    """Tells a program what changes: a moment later, each kind in order; a watch that breaks begins again with what is there.

    Parameters
    ----------
    changed : callable
        Is told kind, object and whether it is gone.
    """

    def __init__(
        self, store: Store, draw: random.Random, changed: Callable[..., None], client: Client
    ) -> None:
        self._store, self._draw, self._changed, self._client = store, draw, changed, client
        self._queues: dict[str, asyncio.Queue[tuple[str, Object]]] = {
            kind: asyncio.Queue() for kind in WATCHED
        }
        self.is_broken = False
        store.listeners.append(self._told)
        self._tasks = [asyncio.get_running_loop().create_task(self._deliver(kind)) for kind in WATCHED]

    def _told(self, kind: str, event: str, live: Object) -> None:
        if kind in WATCHED and not self.is_broken and matches(live, WATCHED[kind]):
            self._queues[kind].put_nowait((event, live))

    async def _deliver(self, kind: str) -> None:
        while True:
            event, live = await self._queues[kind].get()
            await asyncio.sleep(self._draw.expovariate(50))
            await self._client.stands.wait()
            self._changed(kind, live, is_gone=event == "DELETED")

    def again(self) -> None:
        """Begin anew after a break: what is there is told, what went meanwhile is not."""
        self.is_broken = False
        for kind, selector in WATCHED.items():
            for live in self._store.list(kind, None, selector):
                self._queues[kind].put_nowait(("MODIFIED", live))

    def close(self) -> None:
        """Tell nothing any more."""
        self._store.listeners.remove(self._told)
        for task in self._tasks:
            task.cancel()


def unavailable(asked: Asked) -> Exception | None:
    """Have no API server."""
    return ApiUnavailableError(f"{asked.method} {asked.kind}: no answer")


def failing(error: Exception, *kinds: str) -> Fault:
    """Have writes of some kinds fail."""
    return lambda asked: error if asked.kind in kinds and asked.is_write else None
