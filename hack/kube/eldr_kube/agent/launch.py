"""Starts a container as a process in mount and PID namespaces of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eldr_kube.processes import spawn

_DEVICES = "null zero full random urandom tty"

# Builds a root file system of bind mounts in which every mount point can be made, without a trace outside: a tmpfs
# that mirrors the host's top folders, and where a mount point lies deeper, mirrors of the folders on its way.
_SCRIPT = r"""
set -e
root=$1; shift
mirror() {  # mirror HOST_FOLDER TARGET: TARGET becomes a tmpfs whose entries are HOST_FOLDER's
  mount -t tmpfs -o mode=755 tmpfs "$2"
  for entry in "$1"/* "$1"/.[!.]*; do
    name=${entry##*/}
    if [ -L "$entry" ]; then cp -P "$entry" "$2/$name"
    elif [ -d "$entry" ]; then mkdir "$2/$name"; mount --rbind "$entry" "$2/$name"
    elif [ -e "$entry" ]; then : > "$2/$name"; mount --bind "$entry" "$2/$name"
    fi
  done
}
point() {  # point PATH: make sure that PATH exists below the new root
  at=; rest=${1#/}
  while [ -n "$rest" ]; do
    part=${rest%%/*}; if [ "$part" = "$rest" ]; then rest=; else rest=${rest#*/}; fi
    if [ ! -e "$root$at/$part" ]; then
      [ -z "$at" ] || mountpoint -q "$root$at.mirrored" 2>/dev/null || mirror "$at" "$root$at"
      mkdir -p "$root$1"; return
    fi
    at="$at/$part"
  done
}
mirror "" "$root"
umount -l "$root/dev" 2>/dev/null || true
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in @DEVICES@; do : > "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount --rbind /dev/pts "$root/dev/pts"
ln -s /proc/self/fd "$root/dev/fd"; ln -s fd/0 "$root/dev/stdin"; ln -s fd/1 "$root/dev/stdout"; ln -s fd/2 "$root/dev/stderr"
: > "$root/dev/termination-log"; mount --bind "$1" "$root/dev/termination-log"; shift
while [ "$1" != "--" ]; do
  source=$1; target=$2; mode=$3; shift 3
  if [ "$mode" = keep ]; then mkdir -p "$root$target"  # below a volume: nothing to mirror
  elif [ -d "$source" ]; then point "$target"; else point "${target%/*}"; : >> "$root$target"; fi
  mount --bind "$source" "$root$target"
  [ "$mode" = rw ] || mount -o remount,bind,ro "$root$target" 2>/dev/null || true
done
shift
exec chroot "$root" sh -c 'cd "$1" && shift && exec "$@"' sh "$@"
""".replace("@DEVICES@", _DEVICES)


class LaunchError(Exception):
    """A container cannot be started here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a container needs to start.

    Attributes
    ----------
    command : list of str
    env : dict of str to str
        Complete environment.
    workdir : str
    mounts : list of (Path, str, bool)
        Source, target, read-only.
    log : Path
    keep : tuple of str
        Folders that no volume may hide.
    scratch : Path
        Empty folder for the root file system and the termination message.
    """

    command: list[str]
    env: dict[str, str]
    workdir: str
    mounts: list[tuple[Path, str, bool]]
    keep: tuple[str, ...]
    log: Path
    scratch: Path

    @property
    def termination_log(self) -> Path:
        """What the container writes to ``/dev/termination-log``."""
        return self.scratch / "termination-log"


@cache
def namespaces() -> tuple[str, ...] | None:
    """Return the ``unshare`` command that works here, or None where namespaces are forbidden."""
    if shutil.which("unshare") is None:
        return None
    base = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    options = base if os.getuid() == 0 else (*base, "--user", "--map-root-user")
    works = subprocess.run(
        [*options, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return options if works.returncode == 0 else None


def start(launch: Launch) -> subprocess.Popen[bytes]:
    """Start a container.

    Raises
    ------
    LaunchError
        If it mounts volumes where mount namespaces are forbidden, or its program does not exist.
    """
    launch.scratch.mkdir(parents=True, exist_ok=True)
    launch.termination_log.write_bytes(b"")
    unshare = namespaces()
    if unshare is None:
        if launch.mounts:
            raise LaunchError(
                "this machine forbids mount namespaces, so volumes cannot be mounted; run as root or allow "
                "unprivileged user namespaces"
            )
        try:
            return spawn(launch.command, log=launch.log, env=launch.env, cwd=Path(launch.workdir))
        except OSError as error:
            raise LaunchError(str(error)) from error
    root = launch.scratch / "root"
    root.mkdir(exist_ok=True)
    mounts: list[str] = []
    for source, target, read_only in sorted(launch.mounts, key=lambda mount: mount[1]):
        mounts += [str(source), os.path.realpath(target), "ro" if read_only else "rw"]
    for folder in sorted({os.path.realpath(folder) for folder in launch.keep}):
        if any(Path(folder).is_relative_to(os.path.realpath(target)) for _, target, _ in launch.mounts):
            mounts += [folder, folder, "keep"]
    script = [
        "sh",
        "-c",
        _SCRIPT,
        "container",
        str(root),
        str(launch.termination_log),
        *mounts,
        "--",
        launch.workdir,
    ]
    return spawn([*unshare, *script, *launch.command], log=launch.log, env=launch.env)


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to a container's first process, as a container runtime does."""
    for pid in _first_process(process):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue


def inside(process: subprocess.Popen[bytes], command: Iterable[str]) -> list[str]:
    """Return a command line that runs a command inside a container."""
    if namespaces() is None:
        return list(command)
    (pid,) = _first_process(process) or [process.pid]
    user = [] if os.getuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(pid), "--mount", "--pid", "--root", "--wd", *user, "--", *command]


def _first_process(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the container's first process: the child of ``unshare``, which itself ignores SIGTERM."""
    if namespaces() is None:
        return [process.pid]
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in children.split()][:1]
