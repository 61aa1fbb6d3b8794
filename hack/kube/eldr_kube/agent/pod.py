"""One pod: its containers in order, its status, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from eldr_kube.agent.api import Api, ApiError
from eldr_kube.agent.clock import Deadline, timestamp
from eldr_kube.agent.container import Container, WaitingError
from eldr_kube.agent.environment import (
    MissingSourceError,
    arguments,
    base_environment,
    container_env,
    expand,
)
from eldr_kube.agent.events import Recorder
from eldr_kube.agent.images import ImageMap, UnknownImageError
from eldr_kube.agent.launch import Isolation, Launch
from eldr_kube.agent.sources import Sources, references
from eldr_kube.agent.state import ContainerState, container_state
from eldr_kube.agent.status import PodState, pod_status
from eldr_kube.agent.volumes import Volumes

Object = dict[str, Any]
RETRY_SECONDS = 1.0
GATHER_SECONDS = 0.02
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """What the pods of an agent share.

    Attributes
    ----------
    client : httpx.AsyncClient
        For probes.
    backoff : float
        Second restart delay of a container, seconds.
    """

    api: Api
    images: ImageMap
    client: httpx.AsyncClient
    isolation: Isolation
    recorder: Recorder
    backoff: float


class Pod:
    """A pod that runs here.

    Parameters
    ----------
    manifest : dict
    address : str
        Its own loopback address.
    folder : Path
        Its volumes, logs and scratch files.
    """

    def __init__(self, node: Node, manifest: Object, *, address: str, folder: Path) -> None:
        spec, status = manifest["spec"], manifest.get("status", {})
        self.address = address
        self.references = references(manifest)
        self.deadline: Deadline | None = None
        self._node = node
        self._manifest = manifest
        self._folder = folder
        self._sources = Sources(node.api, manifest, address)
        self._volumes = Volumes(folder / "volumes", self._sources, spec.get("volumes") or [])
        self._stale = asyncio.Event()
        self._changed = asyncio.Event()
        self._reported: Object = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        policy = spec.get("restartPolicy", "Always")
        initial = [container_state(policy, item, init=True) for item in spec.get("initContainers") or []]
        main = [container_state(policy, item, init=False) for item in spec["containers"]]
        known = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        before = {item["name"]: item for item in known}
        for state in [*initial, *main]:
            state.resume(before.get(state.name, {}))
        self._state = PodState(initial, main, address, status.get("startTime") or timestamp())
        self._containers = {state.name: self._container(state) for state in [*initial, *main]}
        self._keepers: list[asyncio.Task[None]] = []
        self._life: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        """The pod's path on the API server."""
        metadata = self._manifest["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    def container(self, name: str) -> Container | None:
        """Return a container by its name."""
        return self._containers.get(name)

    def named(self, namespace: str, name: str) -> bool:
        """Tell whether this is the pod of that name."""
        metadata = self._manifest["metadata"]
        return bool(metadata["namespace"] == namespace and metadata["name"] == name)

    def shows(self, namespace: str, kind: str, name: str) -> bool:
        """Tell whether one of its volumes is filled from that object."""
        return self._manifest["metadata"]["namespace"] == namespace and (kind, name) in self.references

    def refresh(self) -> None:
        """Bring the volumes up to date soon."""
        self._stale.set()

    def update(self, manifest: Object) -> None:
        """Take a newer version of the pod in: its labels may have changed, or its readiness gates have opened."""
        moved = manifest["metadata"].get("labels") != self._manifest["metadata"].get("labels")
        moved |= manifest["metadata"].get("annotations") != self._manifest["metadata"].get("annotations")
        self._manifest = self._sources.pod = manifest
        if moved:
            self._stale.set()
        if manifest["spec"].get("readinessGates"):
            self._changed.set()

    def begin(self) -> None:
        """Start to run the pod."""
        self._keepers = [asyncio.create_task(self._keep_volumes()), asyncio.create_task(self._keep_status())]
        self._life = asyncio.create_task(self._run())
        for task in [*self._keepers, self._life]:
            task.add_done_callback(show_crash)

    async def _run(self) -> None:
        if (lost := self._lost()) is not None:
            self._state.failure, self._state.ending = lost, True
            self._changed.set()
            return
        seconds = self._manifest["spec"].get("activeDeadlineSeconds")
        try:
            async with asyncio.timeout(seconds):
                over = await self._run_in_order()
        except TimeoutError:
            self._state.failure = ("DeadlineExceeded", f"Pod was active longer than {seconds} s")
            await self._stop(Deadline(self._grace))
        else:
            if over:
                await self._stop_sidecars(Deadline(self._grace))
        self._changed.set()

    def _lost(self) -> tuple[str, str] | None:
        """A container that must not run twice has run under an agent that is gone."""
        ran = [state.name for state in self._state.main if state.policy == "Never" and state.restarts]
        return ("NodeLost", f"the node agent ended while {', '.join(ran)} ran") if ran else None

    async def _run_in_order(self) -> bool:
        """Run until every container is over."""
        for state in self._state.initial:
            if not await self._initialize(state):
                return True
        self._state.initialized = True
        self._changed.set()
        await asyncio.wait([self._start(state) for state in self._state.main])
        return not self._state.ending

    async def _initialize(self, state: ContainerState) -> bool:
        run = self._start(state)
        if not state.sidecar:
            await asyncio.wait([run])
            return state.exit_code == 0
        started = asyncio.ensure_future(self._containers[state.name].has_started.wait())
        await asyncio.wait([run, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        return state.started

    def _start(self, state: ContainerState) -> asyncio.Task[None]:
        run = asyncio.create_task(self._containers[state.name].run())
        run.add_done_callback(show_crash)
        self._runs[state.name] = run
        return run

    async def end(self, grace: float | None = None) -> None:
        """End the pod within ``grace`` seconds, by default what the pod grants; a second call may only hasten it."""
        seconds = self._grace if grace is None else grace
        if self.deadline is not None:
            self.deadline.hasten(seconds)
            return
        self.deadline = Deadline(seconds)
        self._state.ending = True
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        await self._stop(self.deadline)
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _stop(self, deadline: Deadline) -> None:
        """End containers together, then the init container that runs or the sidecars in reverse order."""
        self._state.ending = True
        mains = [state.name for state in self._state.main if state.name in self._runs]
        await asyncio.gather(*(self._containers[name].stop(self._runs[name], deadline) for name in mains))
        await self._stop_sidecars(deadline)

    async def _stop_sidecars(self, deadline: Deadline) -> None:
        for state in reversed(self._state.initial):
            if state.name in self._runs:
                await self._containers[state.name].stop(self._runs[state.name], deadline)

    async def finish(self) -> None:
        """Report the last status, tell the API server that nothing of the pod is left, remove its folder."""
        await self.report()
        uid = self._manifest["metadata"]["uid"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        while True:
            try:
                await self._node.api.call("DELETE", self.path, body)
            except ApiError as error:
                if error.status in {404, 409}:
                    break
                _log.warning("cannot delete %s: %s", self.path, error)
            except httpx.HTTPError as error:
                _log.warning("cannot delete %s: %s", self.path, error)
            else:
                break
            await asyncio.sleep(RETRY_SECONDS)

    async def clean(self) -> None:
        """Remove what the pod has left on this machine."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _container(self, state: ContainerState) -> Container:
        node = self._node
        return Container(
            state,
            address=self.address,
            folder=self._folder / "containers" / state.name,
            prepare=self._prepare,
            changed=self._changed.set,
            note=partial(node.recorder.note, self._manifest),
            client=node.client,
            isolation=node.isolation,
            grace=float(self._manifest["spec"].get("terminationGracePeriodSeconds", 30)),
            backoff=node.backoff,
        )

    async def _prepare(self, state: ContainerState, folder: Path, log: Path) -> Launch:
        spec, metadata = state.spec, self._manifest["metadata"]
        try:
            image = self._node.images.find(spec["image"])
        except UnknownImageError as error:
            raise WaitingError("ImagePullBackOff", str(error)) from error
        try:
            await self._volumes.write()
        except (MissingSourceError, ApiError, OSError, httpx.HTTPError) as error:
            raise WaitingError("ContainerCreating", f"MountVolume.SetUp failed: {error}") from error
        try:
            own = await container_env(self._manifest, spec, self.address, self._sources.text)
            mounts = list(self._volumes.mounts(spec, own))
        except (MissingSourceError, ApiError, ValueError, OSError, httpx.HTTPError) as error:
            raise WaitingError("CreateContainerConfigError", str(error)) from error
        command = arguments(spec, image.entrypoint, own)
        if not command:
            message = (
                f"image {spec['image']!r} has no entrypoint in the image map, and the container no command"
            )
            raise WaitingError("CreateContainerError", message)
        return Launch(
            command=command,
            env=base_environment(image.path)
            | self._node.api.environment
            | {"HOSTNAME": metadata["name"]}
            | image.env
            | own,
            workdir=expand(spec.get("workingDir") or image.workdir, own),
            mounts=mounts,
            log=log,
            folder=folder,
            hostname=metadata["name"],
            keep=image.keep,
            base=image.root,
            message_path=spec.get("terminationMessagePath") or "/dev/termination-log",
        )

    @property
    def _grace(self) -> float:
        configured = self._manifest["spec"].get("terminationGracePeriodSeconds", 30)
        return float(self._manifest["metadata"].get("deletionGracePeriodSeconds", configured))

    async def _keep_volumes(self) -> None:
        """Bring changes of ConfigMaps, Secrets, labels and tokens into the running pod."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._sources.renewal):
                    await self._stale.wait()
            self._stale.clear()
            try:
                await self._volumes.write()
            except (MissingSourceError, ApiError, OSError, httpx.HTTPError) as error:
                # As the kubelet: the old content stays, and it is tried again.
                _log.info("volumes of %s: %s", self.path, error)
                await asyncio.sleep(RETRY_SECONDS)
                self._stale.set()

    async def _keep_status(self) -> None:
        self._changed.set()
        while True:
            await self._changed.wait()
            # Containers of one pod tend to change together.
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            if not await self.report():
                await asyncio.sleep(RETRY_SECONDS)
                self._changed.set()

    async def report(self) -> bool:
        """Write the pod's status if it changed; tell whether the API server has it."""
        status = pod_status(self._state, self._manifest, timestamp())
        if status == self._reported:
            return True
        metadata = self._manifest["metadata"]
        # Merged lists would keep the address that the pod had under an agent before this one.
        addresses = {"podIPs": [*status["podIPs"], {"$patch": "replace"}]}
        body = {"metadata": {"uid": metadata["uid"]}, "status": status | addresses}
        try:
            answer = await self._node.api.call("PATCH", f"{self.path}/status", body)
        except ApiError as error:
            if error.status in {404, 409}:  # the pod, or this pod of that name, is gone
                return True
            _log.warning("status of %s: %s", self.path, error)
            return False
        except httpx.HTTPError as error:
            _log.warning("status of %s: %s", self.path, error)
            return False
        self._manifest["status"] = answer["status"]
        self._reported = status
        return True


def show_crash(task: asyncio.Task[None]) -> None:
    """Log why a task of a pod failed, if it did."""
    if not task.cancelled() and (error := task.exception()):
        _log.error("a task of a pod failed", exc_info=error)
