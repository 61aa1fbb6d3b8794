"""The agent: nodes, and a task for every pod that is bound to one of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from eldr_kube.agent import launch, nodes
from eldr_kube.agent.api import Api
from eldr_kube.agent.container import Container
from eldr_kube.agent.images import ImageMap
from eldr_kube.agent.logs import LogServer
from eldr_kube.agent.pod import Pod

Object = dict[str, Any]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Parameters of an agent.

    Attributes
    ----------
    kubeconfig : Path
    state : Path
        Folder of its own; what an agent before left there is removed.
    certificate, key : Path
        For the log server.
    n_nodes : int
    images : ImageMap
    backoff : float
        First restart delay of a failing container, seconds.
    """

    kubeconfig: Path
    state: Path
    certificate: Path
    key: Path
    n_nodes: int
    images: ImageMap
    backoff: float


class Agent:
    """A node agent.

    Parameters
    ----------
    settings : AgentSettings
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._api = Api(settings.kubeconfig)
        self._probes = httpx.AsyncClient(verify=False)
        self._pods: dict[str, Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        # Clusters that run side by side share 127.0.0.0/8: each agent takes a /24 by chance.
        second, third = random.randint(16, 250), random.randint(0, 250)
        self._addresses = (f"127.{second}.{third}.{n}" for n in itertools.cycle(range(2, 250)))

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until told to stop, then end every pod."""
        settings = self._settings
        shutil.rmtree(settings.state, ignore_errors=True)
        settings.state.mkdir(parents=True)
        logs = LogServer(self._find, settings.certificate, settings.key, self._api.ca)
        names = [f"local-{number}" for number in range(settings.n_nodes)]
        note = "pods run as local processes"
        if launch.namespaces() is None:
            note += "; mount namespaces are forbidden here, so pods with volumes cannot run"
        tasks: list[asyncio.Task[None]] = []
        try:
            for name in names:
                await nodes.register(self._api, name, logs.port, note)
                tasks += [
                    asyncio.create_task(nodes.heartbeat(self._api, name)),
                    asyncio.create_task(self._serve(name)),
                ]
            await stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(
                *tasks, *(self._end(uid, grace=0.0) for uid in list(self._pods)), return_exceptions=True
            )
            logs.close()
            await self._probes.aclose()
            await self._api.close()
            shutil.rmtree(settings.state, ignore_errors=True)

    async def _serve(self, node: str) -> None:
        async for kind, pod in self._api.follow("/api/v1/pods", fieldSelector=f"spec.nodeName={node}"):
            uid = pod["metadata"]["uid"]
            if kind == "DELETED":
                self._background(uid, self._end(uid, grace=0.0))
            elif pod["metadata"].get("deletionTimestamp"):
                self._background(uid, self._finish(pod))
            elif uid not in self._pods and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                self._begin(pod)

    def _begin(self, manifest: Object) -> None:
        uid = manifest["metadata"]["uid"]
        pod = Pod(
            self._api,
            manifest,
            address=next(self._addresses),
            folder=self._settings.state / uid,
            images=self._settings.images,
            client=self._probes,
            backoff=self._settings.backoff,
        )
        self._pods[uid] = pod
        task = asyncio.create_task(pod.run())
        task.add_done_callback(_show_crash)
        self._tasks[uid] = task

    def _background(self, uid: str, work: Any) -> None:
        if uid in self._ending:
            work.close()
            return
        self._ending.add(uid)
        task = asyncio.create_task(work)
        task.add_done_callback(_show_crash)
        self._tasks[f"{uid} end"] = task

    async def _finish(self, manifest: Object) -> None:
        uid = manifest["metadata"]["uid"]
        pod = self._pods.get(uid)
        if pod is None:
            pod = Pod(
                self._api,
                manifest,
                address="127.0.0.1",
                folder=self._settings.state / uid,
                images=self._settings.images,
                client=self._probes,
                backoff=self._settings.backoff,
            )
        pod.manifest = manifest
        await self._end(uid, grace=None)
        await pod.delete()
        self._ending.discard(uid)
        self._tasks.pop(f"{uid} end", None)

    async def _end(self, uid: str, grace: float | None) -> None:
        pod = self._pods.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if pod is None:
            return
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await pod.stop(grace)

    def _find(self, namespace: str, name: str, container: str) -> Container | None:
        for pod in list(self._pods.values()):
            metadata = pod.manifest["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                return pod.container(container)
        return None


def _show_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("a pod's task failed", exc_info=error)
