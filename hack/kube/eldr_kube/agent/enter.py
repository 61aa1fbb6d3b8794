"""Become a container: build its root file system in fresh namespaces, then execute its program.

Runs as a script of its own (``python -I -S enter.py FD``), started by :mod:`eldr_kube.agent.launch` inside ``unshare``.
The descriptor is a socket to the agent: one byte says that the namespaces stand and carries a second socket, then the
specification comes as JSON. Whatever goes wrong returns as text through the second socket, which closes by itself when
the program starts (the first one stays open in ``unshare``). Standard library only.

The root is a tmpfs that mirrors the host's top folders by bind mounts. Where a mount point does not exist, the nearest
folder above it is mirrored likewise, so it can be made without a trace on the host.
"""

# System calls on descriptors and on a root that is half built, where path objects would be in the way.
# ruff: noqa: PTH102, PTH103, PTH112, PTH114, PTH115, PTH116, PTH120, PTH211

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
_CONTAINER_UMASK = 0o022
_KERNEL = frozenset({"dev", "proc", "sys"})
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Call mount(2)."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(_libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def bind(source: str, target: str) -> None:
    """Show a file or folder, with what is mounted below it, at a second place."""
    mount(source, target, None, MS_BIND | MS_REC)


def read_only(target: str) -> None:
    """Forbid writing through a bind mount; flags that the kernel has locked are kept, else it refuses."""
    flags = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)


def mirror(source: str, target: str, skip: frozenset[str] = frozenset()) -> None:
    """Mount a tmpfs whose entries are those of a folder; ``source`` and ``target`` may be the same folder."""
    folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The old entries stay reachable through the descriptor when the tmpfs covers them.
        below = f"/proc/self/fd/{folder}"
        entries = [entry for entry in os.scandir(folder) if entry.name not in skip]
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        mount("tmpfs", target, "tmpfs", MS_NOSUID, f"mode={mode:o}")
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                _copy_entry(f"{below}/{entry.name}", f"{target}/{entry.name}")
    finally:
        os.close(folder)


def _copy_entry(source: str, target: str) -> None:
    kind = os.lstat(source).st_mode
    if stat.S_ISLNK(kind):
        os.symlink(os.readlink(source), target)
        return
    place(target, folder=stat.S_ISDIR(kind))
    bind(source, target)


def place(target: str, *, folder: bool) -> None:
    """Make an empty mount point."""
    if folder:
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))


class Root:
    """A container's root file system while it is built.

    Parameters
    ----------
    path : str
        Empty folder where it is mounted.
    keep : list of str
        Folders of the host that stay visible where a volume covers one of their parents.
    base : str
        Folder whose files it shows, read-only but for the host's own.
    """

    def __init__(self, path: str, keep: list[str], base: str = "/") -> None:
        self._path = path
        self._own = {path}
        self._keep = [
            (folder, os.open(folder, os.O_PATH | os.O_CLOEXEC)) for folder in keep if os.path.isdir(folder)
        ]
        if base == "/":
            mirror("/", path)
        else:
            self._show(base)

    def _show(self, base: str) -> None:
        """Mirror an unpacked image; what the kernel makes and how names are found is the host's."""
        mirror(base, self._path, skip=_KERNEL)
        for entry in os.scandir(self._path):
            if not entry.is_symlink():
                read_only(entry.path)
        for name in _KERNEL:
            place(f"{self._path}/{name}", folder=True)
            bind(f"/{name}", f"{self._path}/{name}")

    def add(self, source: str, target: str) -> str:
        """Bind a source at a path inside the root, making what is missing, and return the place."""
        place_ = self._resolve(target)
        if not os.path.lexists(place_):
            self._make(place_, folder=os.path.isdir(source))
        bind(source, place_)
        # What lies in a mounted volume is the pod's own: mount points in it need no mirror.
        self._own.add(place_)
        for folder, descriptor in self._keep:
            kept = self._resolve(folder)
            if kept.startswith(f"{place_}/") and os.path.isdir(place_):
                os.makedirs(kept, exist_ok=True)
                bind(f"/proc/self/fd/{descriptor}", kept)
        return place_

    def _resolve(self, target: str) -> str:
        """Return the place of a target below the root; symbolic links lead where they lead inside it."""
        here = self._path
        parts = [part for part in target.split("/") if part not in {"", "."}][::-1]
        links = 0
        while parts:
            part = parts.pop()
            if part == "..":
                here = here if here == self._path else os.path.dirname(here)
                continue
            step = f"{here}/{part}"
            if os.path.islink(step):
                links += 1
                if links > 40:
                    raise OSError(f"{target}: too many symbolic links")
                lead = os.readlink(step)
                here = self._path if lead.startswith("/") else here
                parts += [piece for piece in lead.split("/") if piece not in {"", "."}][::-1]
            else:
                here = step
        return here

    def _make(self, target: str, *, folder: bool) -> None:
        missing = [target]
        while not os.path.lexists(parent := os.path.dirname(missing[-1])):
            missing.append(parent)
        if not any(parent == own or self._volume_of(parent, own) for own in self._own):
            mirror(parent, parent)
            self._own.add(parent)
        for step in reversed(missing[1:]):
            os.mkdir(step)
        place(target, folder=folder)

    def _volume_of(self, path: str, own: str) -> bool:
        """Tell whether a path lies on the same mount as a folder that may be written."""
        return path.startswith(f"{own}/") and os.stat(path).st_dev == os.stat(own).st_dev

    def enter(self) -> None:
        """Make it the root of this process, and let go of the host's."""
        os.chdir(self._path)
        _check(_libc.pivot_root(b".", b"."), "pivot_root")
        _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
        os.chdir("/")


def build(spec: dict[str, Any]) -> None:
    """Build and enter the root file system."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    root = Root(spec["root"], spec["keep"], spec["base"])
    binds = [(source, root.add(source, target), frozen) for source, target, frozen in spec["mounts"]]
    for _, target, frozen in binds:
        if frozen:
            read_only(target)
    root.enter()


def run(spec: dict[str, Any]) -> None:
    """Turn this process into the container's program."""
    if spec["root"] is not None:
        build(spec)
    with contextlib.suppress(
        OSError
    ):  # a hostname is a convenience; without a UTS namespace there is none to set
        if spec["hostname"]:
            socket.sethostname(spec["hostname"])
    if not Path(spec["workdir"]).is_dir():
        raise OSError(f"the working directory {spec['workdir']} does not exist")
    os.chdir(spec["workdir"])
    os.umask(_CONTAINER_UMASK)
    # Python ignores these; programs expect the default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(spec["command"][0], spec["command"], spec["env"])
    except OSError as error:
        raise OSError(f"cannot execute {spec['command'][0]!r}: {error.strerror}") from error


def main() -> int:
    """Talk to the agent, then become the container."""
    answers, theirs = socket.socketpair()
    with answers, socket.socket(fileno=int(sys.argv[1])) as agent:
        os.set_inheritable(agent.fileno(), False)
        # By now the kernel kills this process when the agent dies. An agent that died before sends nothing below.
        with theirs:
            socket.send_fds(agent, [b"+"], [theirs.fileno()])
        text = b"".join(iter(lambda: agent.recv(1 << 16), b""))
        if not text:
            return 1
        try:
            run(json.loads(text))
        except (OSError, ValueError) as error:
            answers.sendall(str(error).encode())
    return 128


if __name__ == "__main__":
    sys.exit(main())
