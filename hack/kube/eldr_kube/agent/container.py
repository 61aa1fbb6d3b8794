"""One container: starts, is probed, restarts with back-off, ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from eldr_kube.agent.clock import Deadline, timestamp
from eldr_kube.agent.launch import Isolation, Launch, LaunchError, Process, start
from eldr_kube.agent.prober import Note, Prober, UnhealthyError
from eldr_kube.agent.probes import ask
from eldr_kube.agent.restarts import Backoff, restarts_after
from eldr_kube.agent.state import ContainerState, terminated

Object = dict[str, Any]
RETRY_SECONDS = 1.0
_MESSAGE_BYTES = 4096
_LOG_BYTES = 2048


class WaitingError(Exception):
    """Why a container cannot start yet; ``reason`` is what ``kubectl get pods`` shows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Container:
    """A container of a pod.

    Parameters
    ----------
    state : ContainerState
        Which it keeps.
    address : str
        The pod's IP address.
    folder : Path
        Logs and scratch files.
    prepare : callable
        ``await prepare(state, folder, log)`` returns what to launch; raises WaitingError while it cannot.
    changed : callable
        Called whenever something changed that the pod's status shows.
    note : callable
        Makes an event of the pod.
    client : httpx.AsyncClient
        For probes.
    grace : float
        Seconds that the pod grants between SIGTERM and SIGKILL.
    backoff : float
        Second restart delay, seconds.
    """

    def __init__(
        self,
        state: ContainerState,
        *,
        address: str,
        folder: Path,
        prepare: Callable[[ContainerState, Path, Path], Awaitable[Launch]],
        changed: Callable[[], None],
        note: Note,
        client: httpx.AsyncClient,
        isolation: Isolation,
        grace: float,
        backoff: float,
    ) -> None:
        self.state = state
        self.has_started = asyncio.Event()
        self._address = address
        self._folder = folder
        self._prepare = prepare
        self._changed = changed
        self._note = note
        self._client = client
        self._isolation = isolation
        self._grace = grace
        self._backoff = Backoff(backoff)
        self._process: Process | None = None
        self._ending = False

    def log(self, attempt: int) -> Path:
        """Return the log file of one start."""
        return self._folder / f"{attempt}.log"

    async def run(self) -> None:
        """Run until the policy says that it is over, or until it was told to stop."""
        loop = asyncio.get_running_loop()
        while not self._ending:
            began = loop.time()
            code = await self._run_once()
            if self._ending or not restarts_after(self.state.policy, code):
                return
            delay = self._backoff.after(loop.time() - began)
            self.state.last = {"terminated": self.state.current["terminated"]}
            if delay:
                message = f"back-off {delay:g}s restarting failed container={self.state.name}"
                self._note("Warning", "BackOff", message)
                self._set({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
                await asyncio.sleep(delay)
            self.state.restarts += 1

    async def _run_once(self) -> int:
        launch = await self._launch()
        begun = timestamp()
        try:
            process = await start(launch, self._isolation)
        except LaunchError as error:
            self._note("Warning", "Failed", str(error))
            self._set({"terminated": terminated(128, "StartError", str(error), begun, timestamp())})
            return 128
        self._process = process
        try:
            self._note("Normal", "Started", f"Started container {self.state.name}")
            self._set({"running": {"startedAt": begun}})
            prober = asyncio.create_task(self._probe(process))
            try:
                code = await process.wait()
            finally:
                prober.cancel()
                await asyncio.gather(prober, return_exceptions=True)
        finally:
            process.kill()
        self.state.ready = self.state.started = False
        message = await asyncio.to_thread(_last_words, launch, self.state.spec, code)
        reason = "Completed" if code == 0 else "Error"
        self._set({"terminated": terminated(code, reason, message, begun, timestamp())})
        return code

    async def _launch(self) -> Launch:
        """Prepare the launch, however long that takes, and show what it waits for."""
        attempt = self._folder / str(self.state.restarts)
        attempt.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                return await self._prepare(self.state, attempt, self.log(self.state.restarts))
            except WaitingError as error:
                waiting = {"reason": error.reason, "message": str(error)}
                if self.state.current.get("waiting") != waiting:
                    self._note("Warning", "Failed", str(error))
                self._set({"waiting": waiting})
            await asyncio.sleep(RETRY_SECONDS)

    async def _probe(self, process: Process) -> None:
        prober = Prober(self.state, self._address, self._client, process.execute, self._probed, self._note)
        try:
            await prober.run()
        except UnhealthyError as error:
            self._note("Normal", "Killing", f"Container {self.state.name} {error}, will be restarted")
            grace = error.probe.get("terminationGracePeriodSeconds", self._grace)
            # Ending it cancels this task, so it needs one of its own.
            self._killing = asyncio.create_task(self._end(process, Deadline(grace)))

    def _probed(self) -> None:
        if self.state.started:
            self.has_started.set()
        self._changed()

    def _set(self, state: Object) -> None:
        if self.state.current != state:
            self.state.current = state
            self._changed()

    async def stop(self, run: asyncio.Task[None], deadline: Deadline) -> None:
        """End the container for good; ``run`` is the task that runs it."""
        self._ending = True
        process = self._process
        if process is None or not process.running:
            run.cancel()
        else:
            self._note("Normal", "Killing", f"Stopping container {self.state.name}")
            await self._end(process, deadline)
        await asyncio.gather(run, return_exceptions=True)

    async def _end(self, process: Process, deadline: Deadline) -> None:
        """Run the preStop hook, send SIGTERM, and SIGKILL when the time is up."""
        over = asyncio.ensure_future(process.wait())
        try:
            if deadline.left > 0:
                hook = asyncio.ensure_future(self._pre_stop(process, deadline))
                await deadline.wait({over, hook})
                hook.cancel()
                await asyncio.gather(hook, return_exceptions=True)
                process.terminate()
                await deadline.wait({over})
            process.kill()
            await over
        finally:
            over.cancel()

    async def _pre_stop(self, process: Process, deadline: Deadline) -> None:
        hook = self.state.spec.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        elif hook:
            question = {**hook, "timeoutSeconds": deadline.left}
            success, message = await ask(
                question, self.state.spec, self._address, self._client, process.execute
            )
            if not success:
                self._note("Warning", "FailedPreStopHook", message)


def _last_words(launch: Launch, spec: Object, code: int) -> str:
    """Return what the container left as its termination message."""
    with contextlib.suppress(OSError):
        if message := launch.message.read_bytes()[:_MESSAGE_BYTES]:
            return message.decode(errors="replace")
        if code and spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return launch.log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    return ""
