"""One container: starts, probes, restarts with back-off, ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from eldr_kube.agent import launch, probes
from eldr_kube.agent.nodes import timestamp
from eldr_kube.processes import signal_group

Object = dict[str, Any]
Policy = Literal["Always", "OnFailure", "Never"]
POLL_SECONDS = 0.05
EAGER_SECONDS = 0.5
BACKOFF_LIMIT = 300.0
STABLE_SECONDS = 600.0
_MESSAGE_BYTES = 4096


@dataclass(slots=True)
class Container:
    """A container of a pod.

    Parameters
    ----------
    spec : dict
    policy : {"Always", "OnFailure", "Never"}
        When it is started again.
    address : str
        The pod's IP address.
    folder : Path
        Logs and scratch files.
    prepare : callable
        Returns what to launch; raises what keeps the container waiting.
    changed : callable
        Called whenever something changed that the pod's status shows.
    client : httpx.AsyncClient
        For probes.
    backoff : float
        First delay before a restart that follows a failure, seconds; doubles up to five minutes.
    """

    spec: Object
    policy: Policy
    address: str
    folder: Path
    prepare: Callable[[Path, Path], Awaitable[launch.Launch]]
    changed: Callable[[], None]
    client: httpx.AsyncClient
    backoff: float = 10.0
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last_state: Object = field(default_factory=dict)
    _env: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    def log(self, attempt: int) -> Path:
        """Return the log file of one start."""
        return self.folder / f"{attempt}.log"

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last run, None while it runs or waits."""
        terminated = self.state.get("terminated")
        return None if terminated is None else int(terminated["exitCode"])

    async def run(self) -> None:
        """Run until the policy says that it is over."""
        delay = 0.0
        while True:
            began = asyncio.get_running_loop().time()
            code = await self._run_once()
            if self.policy == "Never" or (self.policy == "OnFailure" and code == 0):
                return
            lived = asyncio.get_running_loop().time() - began
            # As the kubelet: the first restart is immediate, a container that lived long starts anew.
            if lived > STABLE_SECONDS:
                delay = 0.0
            self.last_state = self.state
            if delay:
                reason = {
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off {delay:.0f}s restarting failed container",
                }
                self._set(waiting=reason)
                await asyncio.sleep(delay)
            delay = min(BACKOFF_LIMIT, delay * 2 or self.backoff)
            self.restarts += 1

    async def _run_once(self) -> int:
        what = await self._prepare()
        try:
            self.process = launch.start(what)
        except launch.LaunchError as error:
            self._set(terminated=_terminated(128, "StartError", str(error), timestamp()))
            return 128
        self._env = what.env
        begun = timestamp()
        self.started = self.ready = False
        self._set(running={"startedAt": begun})
        watcher = asyncio.create_task(self._probe(self.process))
        try:
            while (code := self.process.poll()) is None:
                await asyncio.sleep(POLL_SECONDS)
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        self.ready = self.started = False
        code = code if code >= 0 else 128 - code
        message = self._termination_message(what, code)
        self._set(terminated=_terminated(code, "Completed" if code == 0 else "Error", message, begun))
        return code

    async def _prepare(self) -> launch.Launch:
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                return await self.prepare(self.log(self.restarts), self.folder / "scratch")
            except WaitingError as error:
                self._set(waiting={"reason": error.reason, "message": str(error)})
                await asyncio.sleep(1.0)

    def _set(self, **state: Object) -> None:
        if self.state != state:
            self.state = state
            self.changed()

    def _termination_message(self, what: launch.Launch, code: int) -> str:
        with contextlib.suppress(OSError):
            if message := what.termination_log.read_text(errors="replace")[:_MESSAGE_BYTES]:
                return message
            if code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
                return what.log.read_text(errors="replace")[-2048:]
        return ""

    async def _probe(self, process: subprocess.Popen[bytes]) -> None:
        if (startup := self.spec.get("startupProbe")) and not await self._until_started(startup):
            self.kill(process)
            return
        self.started = True
        readiness, liveness = self.spec.get("readinessProbe"), self.spec.get("livenessProbe")
        if readiness is None:
            self.ready = True
        self.changed()
        async with asyncio.TaskGroup() as group:
            if readiness is not None:
                group.create_task(self._watch_readiness(readiness))
            if liveness is not None:
                group.create_task(self._watch_liveness(liveness, process))

    async def _until_started(self, probe: Object) -> bool:
        verdict = probes.Verdict.of(probe)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while verdict.observe(await self._ask(probe)) is None:
            # An early success is worth asking for more often than the period; failures count by the period alone.
            if not await self._eager(probe, verdict):
                continue
        return bool(verdict.healthy)

    async def _eager(self, probe: Object, verdict: probes.Verdict) -> bool:
        end = asyncio.get_running_loop().time() + probe.get("periodSeconds", 10)
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(min(EAGER_SECONDS, max(0.0, end - asyncio.get_running_loop().time())))
            if await self._ask(probe) and verdict.observe(True):
                return True
        return False

    async def _watch_readiness(self, probe: Object) -> None:
        verdict = probes.Verdict.of(probe)
        period = probe.get("periodSeconds", 10)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            healthy = verdict.observe(await self._ask(probe)) is True
            if healthy != self.ready:
                self.ready = healthy
                self.changed()
            await asyncio.sleep(period if self.ready else min(EAGER_SECONDS, period))

    async def _watch_liveness(self, probe: Object, process: subprocess.Popen[bytes]) -> None:
        verdict = probes.Verdict.of(probe)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while verdict.observe(await self._ask(probe)) is not False:
            await asyncio.sleep(probe.get("periodSeconds", 10))
        await self.stop(min(30.0, probe.get("terminationGracePeriodSeconds", 30.0)), process)

    async def _ask(self, probe: Object) -> bool:
        return await probes.ask(probe, self.spec, self.address, self.client, self.execute)

    async def execute(self, command: list[str], seconds: float) -> bool:
        """Run a command inside the container and tell whether it exited with 0 in time."""
        process = self.process
        if process is None or process.poll() is not None:
            return False
        null = asyncio.subprocess.DEVNULL
        child = await asyncio.create_subprocess_exec(
            *launch.inside(process, command), env=self._env, stdin=null, stdout=null, stderr=null
        )
        try:
            async with asyncio.timeout(seconds):
                return await child.wait() == 0
        except TimeoutError:
            return False
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()

    async def stop(self, seconds: float, process: subprocess.Popen[bytes] | None = None) -> None:
        """End the running process: preStop hook, SIGTERM, SIGKILL when the time is up."""
        process = process or self.process
        if process is None or process.poll() is not None:
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await self._pre_stop(max(0.0, end - loop.time()))
        launch.terminate(process)
        while process.poll() is None and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
        self.kill(process)
        while process.poll() is None:
            await asyncio.sleep(POLL_SECONDS)

    async def _pre_stop(self, seconds: float) -> None:
        hook = self.spec.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            await asyncio.sleep(min(seconds, hook["sleep"]["seconds"]))
        elif hook:
            probe = {**hook, "timeoutSeconds": seconds}
            await self._ask(probe)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """End a container at once, with everything that it started."""
        if process.poll() is None:
            signal_group(process, 9)


class WaitingError(Exception):
    """Why a container cannot start yet; ``reason`` is what ``kubectl get pods`` shows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _terminated(code: int, reason: str, message: str, begun: str) -> Object:
    state: Object = {"exitCode": code, "reason": reason, "startedAt": begun, "finishedAt": timestamp()}
    return state | ({"message": message} if message else {})


def base_environment(path: tuple[str, ...]) -> dict[str, str]:
    """Return what every container sees: nothing of the agent's own environment that could matter."""
    folders = [*path, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ") if name in os.environ}
    return {**kept, "PATH": ":".join(folders), "HOME": "/tmp"}
