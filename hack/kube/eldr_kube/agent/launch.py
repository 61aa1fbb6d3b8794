"""Starts a container as a process tree that cannot outlive the agent."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_ENTER = Path(__file__).with_name("enter.py")
_TERMINATION_LOG = "/dev/termination-log"
# The agent's environment does not reach a container; this is for setpriv and unshare.
_TOOL_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


_log = logging.getLogger(__name__)


class LaunchError(Exception):
    """A container cannot be started; the message says why."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What this machine allows.

    Attributes
    ----------
    unshare : tuple of str
        Command that makes the namespaces, empty where they are forbidden.
    user : bool
        Whether it makes a user namespace too.
    """

    unshare: tuple[str, ...] = ()
    user: bool = False

    @property
    def note(self) -> str:
        """One sentence for the node's condition."""
        if self.unshare:
            return "pods run as local processes in mount and PID namespaces"
        return (
            "pods run as plain processes: this machine forbids namespaces, so mount paths are replaced in commands, "
            "arguments and variables only, and a process that leaves its group may outlive its pod"
        )


def candidates() -> list[Isolation]:
    """Return what to try on this machine, best first."""
    if shutil.which("unshare") is None:
        return []
    base = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child")
    mapped = ("--user", "--map-root-user")
    users = [False, True] if os.getuid() == 0 else [True]
    # Some container runtimes forbid a fresh /proc and nothing else.
    return [
        Isolation((*base, *proc, *(mapped if user else ())), user)
        for proc in (("--mount-proc",), ())
        for user in users
    ]


async def detect(scratch: Path) -> Isolation:
    """Return the best isolation that starts a container with a volume here."""
    scratch.mkdir(parents=True, exist_ok=True)
    trial = Launch(
        command=["/bin/sh", "-c", "test -d /eldr-trial/volume"],
        env=_TOOL_PATH,
        workdir="/",
        mounts=[(scratch, "/eldr-trial/volume", True)],
        log=scratch / "log",
        folder=scratch,
    )
    for isolation in candidates():
        command = " ".join(isolation.unshare)
        try:
            process = await start(trial, isolation)
        except LaunchError as error:
            _log.info("%s: %s: %s", command, error, trial.log.read_text(errors="replace"))
            continue
        if (code := await process.wait()) == 0:
            return isolation
        _log.info("%s: exit code %d: %s", command, code, trial.log.read_text(errors="replace"))
    return Isolation()


@dataclass(frozen=True, slots=True)
class Launch:
    """What a container needs to start.

    Attributes
    ----------
    env : mapping of str to str
        Complete environment.
    mounts : list of (Path, str, bool)
        Source, target, read-only.
    log : Path
        Where output goes.
    folder : Path
        The container's own, outside of it: root file system, termination message.
    message_path : str
        Where the container may leave its last words.
    keep : tuple of str
        Folders that stay visible where a volume covers one of their parents.
    base : str
        Folder whose files it sees: this machine's, or an unpacked image.
    """

    command: list[str]
    env: Mapping[str, str]
    workdir: str
    mounts: list[tuple[Path, str, bool]]
    log: Path
    folder: Path
    hostname: str = ""
    message_path: str = _TERMINATION_LOG
    keep: tuple[str, ...] = ()
    base: str = "/"

    @property
    def message(self) -> Path:
        """File with the container's last words."""
        return self.folder / "termination-log"

    @property
    def root(self) -> Path:
        """Where the root file system is mounted, inside the namespace only."""
        return self.folder / "root"


class Process:
    """A container's process.

    Parameters
    ----------
    child : asyncio.subprocess.Process
        What the agent started.
    first : int
        The container's first process, as the host numbers it.
    """

    def __init__(
        self, child: asyncio.subprocess.Process, first: int, launch: Launch, isolation: Isolation
    ) -> None:
        self._child = child
        self._first = first
        self._isolation = isolation
        self.launch = launch

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._child.returncode is None

    async def wait(self) -> int:
        """Return the exit code; 128 + number after a signal."""
        code = await self._child.wait()
        if not self._isolation.unshare:
            _signal_group(
                self._child.pid
            )  # what it left behind; with a PID namespace the kernel has ended it
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        """Send SIGTERM to the first process, as a container runtime does."""
        if self.running:
            _signal(self._first, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, with everything that it has started."""
        if self.running:
            _signal_group(self._child.pid)

    async def execute(self, command: Sequence[str], seconds: float) -> tuple[bool, str]:
        """Run a command inside the container: whether it exited with 0 in time, and what it printed."""
        inside: list[str] = []
        if self._isolation.unshare:
            inside = ["nsenter", f"--target={self._first}", "--mount", "--uts", "--pid", "--root", "--wd"]
            inside += ["--user", "--preserve-credentials", "--"] if self._isolation.user else ["--"]
        try:
            child = await asyncio.create_subprocess_exec(
                *inside,
                *command,
                env=self.launch.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return False, str(error)
        try:
            async with asyncio.timeout(seconds):
                output, _ = await child.communicate()
        except TimeoutError:
            return False, f"command timed out after {seconds:g} s"
        finally:
            if child.returncode is None:
                _signal_group(child.pid)
                await child.wait()
        return child.returncode == 0, output.decode(errors="replace").strip()[-1024:]


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # the group has ended; its number may be another's
        return


async def start(launch: Launch, isolation: Isolation) -> Process:
    """Start a container; LaunchError if its root file system cannot be built or its program cannot be executed."""
    if launch.base != "/" and not isolation.unshare:
        raise LaunchError(f"this machine forbids mount namespaces, and {launch.base} is to be the root")
    launch.root.mkdir(parents=True, exist_ok=True)
    launch.message.write_bytes(b"")
    launch.message.chmod(0o666)
    ours, theirs = socket.socketpair()
    with theirs, launch.log.open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL"),
            *isolation.unshare,
            *(sys.executable, "-I", "-S", str(_ENTER), str(theirs.fileno())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_TOOL_PATH,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    try:
        await _introduce(ours, _specification(launch, isolation))
        return Process(child, _first_process(child.pid, isolation), launch, isolation)
    except BaseException:
        if child.returncode is None:
            _signal_group(child.pid)
            await child.wait()
        raise


async def _introduce(connection: socket.socket, specification: bytes) -> None:
    """Send the specification once the child's life hangs on ours, and wait until its program runs."""
    loop = asyncio.get_running_loop()
    with connection:
        connection.setblocking(False)
        await _readable(connection)
        greeting, descriptors, *_ = socket.recv_fds(connection, 1, 1)
        if not greeting:
            raise LaunchError("its namespaces were refused")
        with socket.socket(fileno=descriptors[0]) as answers:
            answers.setblocking(False)
            await loop.sock_sendall(connection, specification)
            connection.shutdown(socket.SHUT_WR)
            error = b""
            while part := await loop.sock_recv(answers, 1 << 16):
                error += part
    if error:
        raise LaunchError(error.decode(errors="replace"))


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def _specification(launch: Launch, isolation: Isolation) -> bytes:
    mounts = [*launch.mounts, (launch.message, launch.message_path, False)]
    if not isolation.unshare:
        launch = substitute(launch, {target: str(source) for source, target, _ in mounts})
    # The order of depth, so that a volume inside another one is mounted after it.
    ordered = sorted(mounts, key=lambda mount: mount[1].rstrip("/").count("/"))
    content = {
        "root": str(launch.root) if isolation.unshare else None,
        "keep": launch.keep,
        "base": launch.base,
        "mounts": [(str(source), target, frozen) for source, target, frozen in ordered],
        "hostname": launch.hostname if isolation.unshare else "",
        "workdir": launch.workdir,
        "command": launch.command,
        "env": dict(launch.env),
    }
    return json.dumps(content).encode()


def substitute(launch: Launch, paths: Mapping[str, str]) -> Launch:
    """Replace mount paths in command, variables and working directory, where nothing can be mounted."""
    longest_first = sorted((target.rstrip("/") for target in paths), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")
    bare = {target.rstrip("/"): source for target, source in paths.items()}

    def put(text: str) -> str:
        return pattern.sub(lambda found: bare[found.group()], text)

    return replace(
        launch,
        command=[put(part) for part in launch.command],
        env={name: put(value) for name, value in launch.env.items()},
        workdir=put(launch.workdir),
    )


def _first_process(pid: int, isolation: Isolation) -> int:
    """Return the container's first process: the child of ``unshare``, which itself only waits."""
    if not isolation.unshare:
        return pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended already, or the kernel was built without this file
        children = _children(pid)
    return int(children[0]) if children else pid


def _children(pid: int) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = entry.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if parent == str(pid):
            found.append(entry.parent.name)
    return found
