"""The router's hot path as machine code: mypyc makes C of the modules that each request passes, zig compiles it.

The Python modules stay beside it. They are what is edited and tested first, and what runs wherever no machine code fits the
interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from eldr_image.debian import TRIPLES, ImageError
from eldr_image.wheels import GLIBC, MACHINES, MANYLINUX, PYTHON, ROOT, host, install, runs
from eldr_kube.binaries import user_cache

COMPILER = ROOT / "hack" / "image" / "compiler"
_ROUTER = "router/eldr_router"
_PACKAGES = ROOT / "eldr", ROOT / _ROUTER
_HOT = (
    *(f"{_ROUTER}/{package}/*.py" for package in ("http", "net", "api", "engines", "placement", "flow")),
    *(f"{_ROUTER}/telemetry/{module}.py" for module in ("journal", "metrics", "request", "tally")),
    *(
        f"eldr/core/{module}.py"
        for module in (
            "balancers", "band", "domains", "marginal", "policies", "policy", "profiles", "signature", "step_time", "tolls", "union",
        )
    ),
)  # fmt: skip
COLD = {
    **{
        f"{_ROUTER}/{module}.py": "reads numbers that others wrote; Python's are the ones without surprises"
        for module in ("engines/exposition", "placement/table", "placement/exchange")
    },
    **{
        f"{_ROUTER}/{module}.py": "msgspec reads the annotations of its classes, which machine code does not keep"
        for module in ("api/messages", "api/responses", "flow/steps")
    },
    f"{_ROUTER}/api/fields.py": "a subclass of str, which mypyc cannot compile",
    **{
        f"{_ROUTER}/{module}.py": "no request waits for it"
        for module in (
            "engines/loads",
            "engines/probes",
            "engines/rounds",
            "flow/freeing",
            "flow/surface",
            "net/fetch",
            "net/handshake",
            "net/work",
            "placement/peers",
            "placement/saving",
            "placement/step_times",
            "placement/steps",
        )
    },
}
"""Modules of those packages that stay Python, and why."""
_FLAGS = ("-shared", "-fPIC", "-O3", "-fwrapv", "-DNDEBUG", "-g0", "-s", "-w")
_KEPT_SECONDS = 86_400.0
"""Since a tree in the cache was asked for last: somebody may still run it."""


class NoHeadersError(ImageError):
    """This machine has no headers of Python; the message says what to install."""


class Target(NamedTuple):
    """What is compiled for.

    Attributes
    ----------
    arch, version : str
        Architecture, and version of Python.
    suffix : str
        End of an extension's file name.
    headers : sequence of Path
        Folders with those of the interpreter.
    python : sequence of str
        Command of an interpreter of that version which runs here: mypyc makes C for the version that it runs on.
    """

    arch: str
    version: str
    suffix: str
    headers: Sequence[Path]
    python: Sequence[str]


class Extension(NamedTuple):
    """An extension module to compile; headers are folders."""

    name: str
    sources: Sequence[str]
    headers: Sequence[str]


def modules() -> list[str]:
    """Return the modules to compile, as paths below the root."""
    found = {str(path.relative_to(ROOT)) for pattern in _HOT for path in ROOT.glob(pattern)}
    return sorted(path for path in found - COLD.keys() if not path.endswith("__init__.py"))


def this_python() -> Target:
    """Return the interpreter that runs this.

    Raises
    ------
    NoHeadersError
        Its headers are missing.
    """
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise NoHeadersError(
            f"{headers}/Python.h is missing: install the headers of Python, such as python3-dev"
        )
    version, suffix = sysconfig.get_python_version(), str(sysconfig.get_config_var("EXT_SUFFIX"))
    return Target(host(), version, suffix, [headers], [sys.executable])


def image_python(arch: str, headers: Path, interpreter: Path) -> Target:
    """Return the image's interpreter; the folders are those of Debian's packages with its headers, and with that of this machine."""
    suffix = f".cpython-{PYTHON.replace('.', '')}-{TRIPLES[arch]}.so"
    folders = [headers / f"usr/include/python{PYTHON}", headers / "usr/include"]
    return Target(arch, PYTHON, suffix, folders, runs(interpreter))


def compiler(version: str) -> Path:
    """Return a folder with mypyc for a version of Python, with zig, made where it is missing."""
    made_from = hashlib.sha256((COMPILER / "requirements.txt").read_bytes()).hexdigest()
    locked = ("--require-hashes", "--requirement", str(COMPILER / "requirements.txt"))
    return _once(
        user_cache() / "compiler" / f"{made_from[:12]}-{version}",
        lambda made: install(made, *locked, version=version, arch=host()),
    )


def build(target: Target, folder: Path) -> None:
    """Put machine code beside the packages in a folder, such as site-packages."""
    home = compiler(target.version)
    with tempfile.TemporaryDirectory(prefix="eldr-native-") as scratch:
        words = (str(COMPILER / "generate.py"), scratch, sys.executable, "eldr", *modules())
        told = _run([*target.python, "-B", *words], "mypyc", PYTHONPATH=str(home))
        for name, *rest in json.loads(told):
            _compile(home / "ziglang" / "zig", target, Extension(name, *rest), folder)


def into_wheel(wheel: Path, target: Target, out: Path, epoch: int) -> Path:
    """Write a wheel with machine code for the image's interpreter beside the modules of another, and return it."""
    out, home = out.resolve(), str(compiler(target.version))
    wheel_tool = (sys.executable, "-m", "wheel")  # which is Python alone, for any version
    with tempfile.TemporaryDirectory(prefix="eldr-wheel-") as scratch:
        _run([*wheel_tool, "unpack", "--dest", scratch, str(wheel)], "unpacking the wheel", PYTHONPATH=home)
        (folder,) = Path(scratch).iterdir()
        build(target, folder)
        (about,) = folder.glob("*.dist-info/WHEEL")
        version = f"cp{target.version.replace('.', '')}"
        tag = f"{version}-{version}-{MANYLINUX}_{MACHINES[target.arch]}"
        text = about.read_text().replace("py3-none-any", tag)
        about.write_text(text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false"))
        pack = [*wheel_tool, "pack", "--dest-dir", str(out), str(folder)]
        _run(pack, "packing the wheel", PYTHONPATH=home, SOURCE_DATE_EPOCH=str(epoch))
        (packed,) = out.glob(f"*{tag}.whl")
        return packed


def tree() -> Path:
    """Return a folder for ``PYTHONPATH`` with our packages and their machine code for this interpreter, made where it is missing."""
    target = this_python()

    def make(made: Path) -> None:
        for package in _PACKAGES:
            shutil.copytree(package, made / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        build(target, made)

    folder = _once(user_cache() / "native" / _key(target), make)
    folder.touch()
    for old in folder.parent.glob("[!.]*"):
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made where it is missing: beside it, so that nobody sees half of it."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as scratch:
            made = Path(scratch) / "made"
            make(made)
            if not folder.exists():  # nobody else was faster
                made.rename(folder)
    return folder


def _key(target: Target) -> str:
    made_from = hashlib.sha256(f"{target.suffix} {sys.version}".encode())
    sources = sorted(path for package in _PACKAGES for path in package.rglob("*.py"))
    for path in (*sources, *sorted(COMPILER.iterdir()), Path(__file__), ROOT / "pyproject.toml"):
        made_from.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return made_from.hexdigest()[:12]


def _compile(zig: Path, target: Target, extension: Extension, folder: Path) -> None:
    *package, name = extension.name.split(".")
    file = folder.joinpath(*package, f"{name}{target.suffix}")
    where = [f"-I{headers}" for headers in (*target.headers, *extension.headers)]
    what = (str(zig), "cc", "-target", f"{MACHINES[target.arch]}-linux-gnu.{GLIBC}")
    command = [*what, *_FLAGS, *where, *extension.sources, "-o", str(file)]
    _run(command, f"compiling {extension.name}")


def _run(command: Sequence[str], what: str, **more: str) -> str:
    cache = str(user_cache() / "zig")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"{what}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
