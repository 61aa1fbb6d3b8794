"""Builds etcd, the Kubernetes servers and a node's endpoint from Go modules: a program's name makes it one or the other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from eldr_kube.packages import BinariesUnavailableError, Say, fetch_go

KUBERNETES: Final = "v1.36.4"
ETCD: Final = "etcd"
SERVERS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
ENDPOINT: Final = "node-endpoint"
"""A kubelet's streams; a program of its own, as it is a tenth of the others."""
GO_MINIMUM: Final = (1, 26)
SOURCE: Final = Path(__file__).parents[1] / "servers"

_VERSION_PACKAGE = "k8s.io/component-base/version"
_REPORT_SECONDS = 15.0


def build(folder: Path, names: Sequence[str], say: Say) -> None:
    """Build one program that holds these servers, and link to it by their names.

    Parameters
    ----------
    folder : Path
        For the program and the links.
    names : sequence of str
        Of ``ETCD``, ``SERVERS`` and ``ENDPOINT``; what others need is not compiled.
    say : callable
        Told how it goes.

    Raises
    ------
    BinariesUnavailableError
        If Go or modules cannot be had, or do not build.
    """
    go = find_go(folder.parent, say)
    say(f"building {', '.join(names)} from Go modules (once; about 12 minutes on two cores)")
    files = ["main.go", *(f"{name}.go" for name in names)]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as scratch:
        work = shutil.copytree(SOURCE, Path(scratch) / "module")
        began = time.monotonic()
        listed = _run([go, "list", "-mod=readonly", "-deps", *files], work, lambda _: "fetching modules", say)
        most = len(listed.splitlines())
        # -v names each package that is compiled; what the linker would strip is not made, which saves a fifth of the time
        flags = ["-trimpath", "-mod=readonly", "-v", "-gcflags=all=-dwarf=false", "-ldflags", _linker_flags()]
        flags += ["-o", "../program"]
        _run([go, "build", *flags, *files], work, lambda lines: f"{lines} of at most {most} packages", say)
        say(f"  built in {time.monotonic() - began:.0f} s")
        program = folder / "-".join(("servers", *names))
        (Path(scratch) / "program").rename(program)
    for name in names:
        link(folder / name, Path(program.name))


def link(path: Path, target: Path) -> None:
    """Make or replace a link at once, as several runs may share it."""
    staged = path.with_name(f".{path.name}-{os.getpid()}")
    staged.unlink(missing_ok=True)
    staged.symlink_to(target)
    staged.rename(path)


def _linker_flags() -> str:
    # Without a version the servers call themselves v0.0.0-master and choose the wrong feature gates.
    major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    flags = [f"-X {_VERSION_PACKAGE}.{key}={value}" for key, value in values.items()]
    return " ".join(["-s", "-w", *flags, f"-X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES}"])


def _run(command: list[str], folder: Path, progress: Callable[[int], str], say: Say) -> str:
    """Run a build command and return what it prints; say now and then how far it is, by its lines of standard error."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local"}
    began = said = time.monotonic()
    last: deque[str] = deque(maxlen=8)
    output = folder.parent / "output"
    with (
        output.open("w") as out,
        subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True, env=environment
        ) as running,
    ):
        assert running.stderr is not None  # a pipe was asked for
        for lines, line in enumerate(running.stderr, 1):
            last.append(line)
            if time.monotonic() - said > _REPORT_SECONDS:
                said = time.monotonic()
                say(f"  {progress(lines)}, {said - began:.0f} s")
    if running.returncode:
        raise BinariesUnavailableError(
            f"the control plane could not be built from Go modules; point KUBEBUILDER_ASSETS at a folder with its "
            f"binaries, or give this machine access to the Go module proxy:\n{''.join(last).strip()}"
        )
    return output.read_text()


def find_go(folder: Path, say: Say) -> str:
    found = shutil.which("go")
    if found and _go_version(found) >= GO_MINIMUM:
        return found
    return str(fetch_go(folder / "go", say))


def _go_version(go: str) -> tuple[int, ...]:
    text = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)
