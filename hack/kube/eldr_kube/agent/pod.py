"""One pod: its containers in order, its status, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from eldr_kube.agent import launch
from eldr_kube.agent.api import Api, ApiError
from eldr_kube.agent.container import Container, Policy, WaitingError, base_environment
from eldr_kube.agent.environment import MissingSourceError, arguments, container_env, expand
from eldr_kube.agent.images import ImageMap, UnknownImageError
from eldr_kube.agent.nodes import timestamp
from eldr_kube.agent.status import is_sidecar, phase, pod_status
from eldr_kube.agent.volumes import Sources, Volumes

Object = dict[str, Any]
SYNC_SECONDS = 2.0
_log = logging.getLogger(__name__)


class Pod:
    """A pod that runs here.

    Parameters
    ----------
    api : Api
    manifest : dict
    address : str
        Its own loopback address.
    folder : Path
        Its volumes, logs and scratch files.
    images : ImageMap
    client : httpx.AsyncClient
        For probes.
    backoff : float
        First restart delay of its containers, seconds.
    """

    def __init__(
        self,
        api: Api,
        manifest: Object,
        *,
        address: str,
        folder: Path,
        images: ImageMap,
        client: httpx.AsyncClient,
        backoff: float,
    ) -> None:
        self.manifest = manifest
        self._api = api
        self._address = address
        self._folder = folder
        self._images = images
        self._client = client
        self._backoff = backoff
        self._sources = Sources(api, manifest, address)
        self._volumes = Volumes(folder / "volumes", self._sources, manifest["spec"].get("volumes", []))
        self._changed = asyncio.Event()
        self._begun = timestamp()
        self._reported: Object = {}
        self._initialized = False
        self._tasks: list[asyncio.Task[None]] = []
        spec = manifest["spec"]
        self.initial = [self._container(item, init=True) for item in spec.get("initContainers", [])]
        self.main = [self._container(item, init=False) for item in spec["containers"]]

    @property
    def path(self) -> str:
        """The pod's path on the API server."""
        metadata = self.manifest["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    def _container(self, spec: Object, *, init: bool) -> Container:
        policy: Policy = self.manifest["spec"].get("restartPolicy", "Always")
        if init:
            policy = "Always" if is_sidecar(spec) else ("Never" if policy == "Never" else "OnFailure")

        async def prepare(log: Path, scratch: Path) -> launch.Launch:
            return await self._prepare(spec, log, scratch)

        return Container(
            spec=spec,
            policy=policy,
            address=self._address,
            folder=self._folder / "containers" / spec["name"],
            prepare=prepare,
            changed=self._changed.set,
            client=self._client,
            backoff=self._backoff,
        )

    async def _prepare(self, spec: Object, log: Path, scratch: Path) -> launch.Launch:
        try:
            image = self._images.find(spec["image"])
        except UnknownImageError as error:
            raise WaitingError("ErrImagePull", str(error)) from error
        try:
            await self._volumes.write()
            own = await container_env(self.manifest, spec, self._address, self._sources.text)
        except MissingSourceError as error:
            raise WaitingError("CreateContainerConfigError", str(error)) from error
        except (ApiError, httpx.HTTPError) as error:
            raise WaitingError("ContainerCreating", str(error)) from error
        server = httpx.URL(self._api.server)
        cluster = {"KUBERNETES_SERVICE_HOST": str(server.host), "KUBERNETES_SERVICE_PORT": str(server.port)}
        cluster |= {"HOSTNAME": self.manifest["metadata"]["name"]}
        return launch.Launch(
            command=arguments(spec, image.entrypoint, own),
            env=base_environment(image.path) | cluster | image.env | own,
            workdir=expand(spec.get("workingDir", image.workdir), own),
            mounts=list(self._volumes.mounts(spec)),
            keep=image.keep,
            log=log,
            scratch=scratch,
        )

    async def run(self) -> None:
        """Run the pod until its containers are over, or the task is cancelled."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._report()), loop.create_task(self._follow())]
        for container in self.initial:
            if not await self._initialize(container):
                return
        self._initialized = True
        mains = [self._start(container) for container in self.main]
        self._changed.set()
        await asyncio.wait(mains)
        for container in reversed(self.initial):
            await container.stop(self._grace)
        self._changed.set()

    async def _initialize(self, container: Container) -> bool:
        task = self._start(container)
        if is_sidecar(container.spec):
            while not container.started:
                await asyncio.sleep(0.02)
            return True
        await asyncio.wait([task])
        if container.exit_code == 0:
            return True
        self._changed.set()
        return False

    def _start(self, container: Container) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(container.run())
        task.add_done_callback(_show_crash)
        self._tasks.append(task)
        return task

    @property
    def _grace(self) -> float:
        metadata = self.manifest["metadata"]
        seconds = metadata.get(
            "deletionGracePeriodSeconds", self.manifest["spec"].get("terminationGracePeriodSeconds", 30)
        )
        return float(seconds)

    async def _follow(self) -> None:
        """Bring changes of ConfigMaps, Secrets and tokens into the running pod."""
        while self._volumes.follows:
            await asyncio.sleep(SYNC_SECONDS)
            with contextlib.suppress(MissingSourceError, ApiError, httpx.HTTPError):
                await self._volumes.write()

    async def _report(self) -> None:
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.report()
            # Containers of one pod tend to change together.
            await asyncio.sleep(0.05)

    async def report(self) -> None:
        """Write the pod's status if it changed."""
        status = pod_status(
            self.initial,
            self.main,
            initialized=self._initialized,
            address=self._address,
            begun=self._begun,
            now=timestamp(),
            old=self._reported,
        )
        if status == self._reported:
            return
        uid = self.manifest["metadata"]["uid"]
        try:
            await self._api.call("PATCH", f"{self.path}/status", {"metadata": {"uid": uid}, "status": status})
        except ApiError as error:
            if error.status not in {404, 409}:
                _log.warning("status of %s: %s", self.path, error)
                self._changed.set()
        except httpx.HTTPError:
            self._changed.set()
        else:
            self._reported = status

    @property
    def over(self) -> bool:
        """Whether the pod has ended by itself."""
        return phase(self.initial, self.main, initialized=self._initialized) in {"Succeeded", "Failed"}

    async def stop(self, grace: float | None = None) -> None:
        """End the pod: the containers first, then the sidecars in reverse order, all within the grace period."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (self._grace if grace is None else grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(container.stop(end - loop.time()) for container in self.main))
        for container in reversed(self.initial):
            await container.stop(max(0.0, end - loop.time()))

    async def delete(self) -> None:
        """Tell the API server that nothing of the pod is left, and remove its folder."""
        uid = self.manifest["metadata"]["uid"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with contextlib.suppress(ApiError):
            await self._api.call("DELETE", self.path, body)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def container(self, name: str) -> Container | None:
        """Return a container by its name."""
        return next((c for c in [*self.main, *self.initial] if c.name == name), None)


def _show_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("a container's task failed", exc_info=error)


PodFactory = Callable[[Object], Pod]
