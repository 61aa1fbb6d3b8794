"""A Kubernetes API server that misbehaves as the test says: pods, ConfigMaps, watches with bookmarks and history."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from eldr import contract
from eldr.centroids import digest
from eldr_kube.ports import free_port

Hook = Callable[[str, web.Request], Awaitable[web.StreamResponse | None]]


def status(code: int, message: str = "no", *, retry_after: int | None = None) -> web.Response:
    """An error as the API server words it."""
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return web.json_response(
        {"kind": "Status", "code": code, "message": message}, status=code, headers=headers
    )


class FakeApi:
    """One namespace ``n`` with the deployment ``x``; ``hook`` may answer in its place."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.config_maps: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.seen: Counter[str] = Counter()
        self.tokens: list[str] = []
        self.hook: Hook | None = None
        self.version = 1
        self.port = 0
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/api/v1/namespaces/n/{kind}", self._collection)
        application.router.add_get("/api/v1/namespaces/n/configmaps/{name}", self._one)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        self.port = self.port or free_port()  # it is kept over restarts: no connection may get it meanwhile
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def put(self, kind: str, name: str, value: dict[str, Any] | None) -> None:
        """Create, change or delete an object."""
        async with self._changed:
            self.version += 1
            store = self.pods if kind == "pods" else self.config_maps
            event = "DELETED" if value is None else "MODIFIED" if name in store else "ADDED"
            value = store.pop(name) if value is None else {**value}
            value["metadata"] = {
                "name": name,
                **value.get("metadata", {}),
                "resourceVersion": str(self.version),
            }
            if event != "DELETED":
                store[name] = value
            self.history.append((self.version, kind, {"type": event, "object": value}))
            self._changed.notify_all()

    async def pod(self, name: str, role: str, address: str, index: int | None = None) -> None:
        labels = {contract.LABEL_DEPLOYMENT: "x", contract.LABEL_ROLE: role}
        if index is not None:
            labels[contract.LABEL_STATEFULSET_INDEX] = str(index)
        ready = {"name": contract.CONTAINER_ENGINE, "ready": True}
        await self.put(
            "pods",
            name,
            {"metadata": {"labels": labels}, "status": {"podIP": address, "containerStatuses": [ready]}},
        )

    async def routing(self, **fields: Any) -> None:
        document = {"version": 1, "model": "m", "epoch": 0, "active": None, "staged": None, **fields}
        await self.put(
            "configmaps", contract.routing_name("x"), {"data": {contract.ROUTING_KEY: json.dumps(document)}}
        )

    async def shard(self, name: str, data: bytes) -> dict[str, Any]:
        content = {contract.SHARD_KEY: base64.b64encode(data).decode()}
        await self.put("configmaps", name, {"binaryData": content})
        shards = [{"name": name, "sha256": hashlib.sha256(data).hexdigest()}]
        return {"fit": name[0], "digest": digest(data), "k": 2, "shards": shards}

    async def _hooked(self, what: str, request: web.Request) -> web.StreamResponse | None:
        self.seen[what] += 1
        self.tokens.append(request.headers.get("authorization", ""))
        return await self.hook(what, request) if self.hook else None

    async def _one(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if (answer := await self._hooked(f"get {name}", request)) is not None:
            return answer
        found = self.config_maps.get(name)
        return web.json_response(found) if found else status(404, f'configmaps "{name}" not found')

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        what = f"watch {kind}" if request.query.get("watch") else f"list {kind}"
        if (answer := await self._hooked(what, request)) is not None:
            return answer
        if what.startswith("watch"):
            return await self.watch(request)
        items = list(self.pods.values())
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def watch(
        self, request: web.Request, *, seconds: float = 600, last: dict[str, Any] | None = None
    ) -> web.StreamResponse:
        """Answer a watch for some time, perhaps with a last event of the test's."""
        kind, after = request.match_info["kind"], int(request.query["resourceVersion"])
        _, _, wanted = request.query.get("fieldSelector", "").partition("=")
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                while True:
                    for version, of, event in self.history:
                        name = event["object"]["metadata"]["name"]
                        if version > after and of == kind and wanted in ("", name):
                            await response.write(json.dumps(event).encode() + b"\n")
                    after = self.version
                    await self._changed.wait()
        if last is not None:
            await response.write(json.dumps(last).encode() + b"\n")
        return response


@contextlib.asynccontextmanager
async def fake_api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    try:
        yield api
    finally:
        await api.stop()
