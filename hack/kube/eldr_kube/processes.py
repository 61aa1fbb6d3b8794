"""Child processes that never outlive their parent, not even one that is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent thread ends; for use between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own that dies with this one; its output goes to a file.

    Call it from the main thread: the kernel's death signal follows the thread that forked.
    """
    parent = os.getpid()
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - one prctl call, no Python state
        )


def end(process: subprocess.Popen[bytes], seconds: float = 10.0) -> None:
    """End a process group: SIGTERM, then SIGKILL."""
    if process.poll() is None:
        signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    if process.poll() is None:
        signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and all in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
