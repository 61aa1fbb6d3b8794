"""The agent: nodes, and everything that is bound to them."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from eldr_kube.agent import READY_FILE, nodes
from eldr_kube.agent.addresses import Addresses
from eldr_kube.agent.api import Api
from eldr_kube.agent.endpoint import Endpoint
from eldr_kube.agent.events import Recorder
from eldr_kube.agent.images import ImageMap
from eldr_kube.agent.launch import Isolation, detect
from eldr_kube.agent.pod import Node, Pod, show_crash

Object = dict[str, Any]
OVER = ("Succeeded", "Failed")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Parameters of an agent.

    Attributes
    ----------
    state : Path
        Folder of its own; what an agent before left there is removed.
    endpoint, certificate, key : Path
        The program that serves logs and forwards ports, and what it serves with.
    backoff : float
        Second restart delay of a failing container, seconds.
    isolate : bool
        Whether to use namespaces where the machine allows them.
    """

    kubeconfig: Path
    state: Path
    endpoint: Path
    certificate: Path
    key: Path
    n_nodes: int
    images: ImageMap
    backoff: float
    isolate: bool = True


class Agent:
    """A node agent."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._names = frozenset(f"local-{number}" for number in range(settings.n_nodes))
        self._pods: dict[str, Pod] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until told to stop, then end every pod at once."""
        settings = self._settings
        shutil.rmtree(settings.state, ignore_errors=True)
        settings.state.mkdir(parents=True)
        isolation = await detect(settings.state / "trial") if settings.isolate else Isolation()
        if not isolation.unshare:
            _log.warning("%s", isolation.note)
        self._addresses = Addresses()
        api = Api(settings.kubeconfig)
        recorder = Recorder(api)
        # A pod's certificate is its own affair, and the user's proxy has no place between a kubelet and its pods.
        # A probe opens a connection of its own, as a kubelet's does.
        client = httpx.AsyncClient(
            verify=False, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._node = Node(api, settings.images, client, isolation, recorder, settings.backoff)
        endpoint = Endpoint(
            settings.endpoint,
            self._find,
            certificate=settings.certificate,
            key=settings.key,
            ca=api.ca,
            folder=settings.state,
        )
        try:
            await self._serve(api, endpoint.port, isolation.note, stop)
        finally:
            await self._end_all()
            await asyncio.to_thread(endpoint.close)
            await recorder.close()
            await client.aclose()
            await api.close()
            self._addresses.close()
            shutil.rmtree(settings.state, ignore_errors=True)

    async def _serve(self, api: Api, port: int, note: str, stop: asyncio.Event) -> None:
        for name in sorted(self._names):
            await nodes.register(api, name, port, note)
        (self._settings.state / READY_FILE).touch()
        tasks = [asyncio.create_task(nodes.heartbeat(api, name)) for name in self._names]
        tasks += [asyncio.create_task(self._watch_pods(api))]
        tasks += [asyncio.create_task(self._watch_sources(api, kind)) for kind in ("ConfigMap", "Secret")]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                await task
        finally:
            for task in [*tasks, stopped]:
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)

    async def _watch_pods(self, api: Api) -> None:
        # A field selector knows no "or": several nodes share one watch of all bound pods.
        selector = f"spec.nodeName={next(iter(self._names))}" if len(self._names) == 1 else "spec.nodeName!="
        async for kind, pods in api.follow("/api/v1/pods", fieldSelector=selector):
            mine = [pod for pod in pods if pod["spec"].get("nodeName") in self._names]
            if kind == "SYNC":
                present = {pod["metadata"]["uid"] for pod in mine}
                for uid in [uid for uid in self._pods if uid not in present]:
                    self._forget(uid)
            for pod in mine:
                self._see(kind, pod)

    def _see(self, kind: str, manifest: Object) -> None:
        uid = manifest["metadata"]["uid"]
        pod = self._pods.get(uid)
        if kind == "DELETED":
            self._forget(uid)
        elif manifest["metadata"].get("deletionTimestamp"):
            if pod is None:
                pod = self._add(manifest)
            pod.update(manifest)
            if uid in self._ends:
                self._spawn(pod.end())
            else:
                self._ends[uid] = self._spawn(self._delete(uid, pod))
        elif pod is not None:
            pod.update(manifest)
        elif manifest.get("status", {}).get("phase") not in OVER:
            self._add(manifest).begin()

    def _add(self, manifest: Object) -> Pod:
        uid = manifest["metadata"]["uid"]
        pod = Pod(
            self._node, manifest, address=self._addresses.take(), folder=self._settings.state / "pods" / uid
        )
        self._pods[uid] = pod
        return pod

    async def _delete(self, uid: str, pod: Pod) -> None:
        await pod.end()
        await pod.finish()
        await self._drop(uid, pod)

    def _forget(self, uid: str) -> None:
        """End a pod that the API server no longer has."""
        pod = self._pods.get(uid)
        if pod is None:
            return
        if uid in self._ends:
            self._spawn(pod.end(0.0))
        else:
            self._ends[uid] = self._spawn(self._kill(uid, pod))

    async def _kill(self, uid: str, pod: Pod) -> None:
        await pod.end(0.0)
        await self._drop(uid, pod)

    async def _drop(self, uid: str, pod: Pod) -> None:
        self._pods.pop(uid, None)
        self._ends.pop(uid, None)
        self._addresses.give_back(pod.address)
        await pod.clean()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(show_crash)
        return task

    async def _watch_sources(self, api: Api, kind: str) -> None:
        """Tell pods about changes of what their volumes show; only names travel, contents are read when needed."""
        async for _, objects in api.follow(f"/api/v1/{kind.lower()}s", metadata_only=True):
            for item in objects:
                metadata = item["metadata"]
                for pod in self._pods.values():
                    if pod.shows(metadata["namespace"], kind, metadata["name"]):
                        pod.refresh()

    async def _end_all(self) -> None:
        await asyncio.gather(*(pod.end(0.0) for pod in self._pods.values()), return_exceptions=True)
        for task in list(self._ends.values()):
            task.cancel()
        await asyncio.gather(*self._ends.values(), return_exceptions=True)

    def _find(self, namespace: str, name: str) -> Pod | None:
        # A pod that ends may still be listed beside its successor of the same name: the younger one is meant.
        found = [pod for pod in list(self._pods.values()) if pod.named(namespace, name)]
        return found[-1] if found else None
