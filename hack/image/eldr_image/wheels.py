"""What runs in the image: locked wheels and our own, unpacked for an architecture and compiled by the image's interpreter."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from eldr_image.debian import LOADERS, TRIPLES, ImageError

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "hack" / "image" / "requirements.lock"
PYTHON = "3.13"
HOME = Path("opt/eldr")
PACKAGES = HOME / "lib" / f"python{PYTHON}" / "site-packages"
_PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
_HOSTS = {"x86_64": "amd64", "aarch64": "arm64"}
_OF_INSTALLERS = ("RECORD", "REQUESTED", "direct_url.json", "uv_cache.json")
"""They name folders of the machine that builds."""
_COMMAND = f"""#!/{HOME}/bin/python
from eldr.cli import main

main()
"""
_UNUSED = ("bin", "**/tests", "share", ".lock", *(f"*.dist-info/{name}" for name in _OF_INSTALLERS))


def host() -> str:
    """Return this machine's architecture, by Debian's name."""
    return _HOSTS.get(platform.machine(), platform.machine())


def dependencies(arch: str, root: Path) -> None:
    """Unpack the locked wheels, checked by their hashes."""
    _install(arch, root, "--require-hashes", "--requirement", str(LOCK))


def own(arch: str, root: Path, scratch: Path, epoch: int) -> None:
    """Build and unpack our wheel; add the command and its interpreter."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    _uv("build", "--quiet", "--wheel", "--out-dir", str(scratch), str(ROOT), environment=environment)
    (wheel,) = scratch.glob("*.whl")
    _install(arch, root, str(wheel))
    programs = root / HOME / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(f"/usr/bin/python{PYTHON}")
    (programs / "eldr").write_text(_COMMAND)
    (programs / "eldr").chmod(0o755)
    (root / HOME / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")


def _runs(interpreter: Path) -> list[str]:
    """Return the command that runs the image's Python here, out of a folder with the Debian packages of this machine's architecture.

    Raises
    ------
    ImageError
        It is an architecture for which no image is built.
    """
    arch, usr = host(), interpreter / "usr"
    if arch not in LOADERS or not (usr / LOADERS[arch]).exists():
        raise ImageError(f"the image's Python runs on {' or '.join(_HOSTS)}, this is {platform.machine()}")
    loader = [str(usr / LOADERS[arch]), "--library-path", str(usr / "lib" / TRIPLES[arch])]
    return [*loader, str(usr / "bin" / f"python{PYTHON}")]


def compile_all(root: Path, interpreter: Path) -> None:
    """Compile every module below a folder, since a read-only image can keep none of it.

    Parameters
    ----------
    interpreter
        Folder with the unpacked Debian packages of this machine's architecture. Bytecode is the same on all.
    """
    program = ["-I", "-S", "-B", "-m", "compileall", "-q", "-f"]
    options = ["--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [*_runs(interpreter), *program, *options, str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"the image's Python could not compile {root.name}: {done.stdout}{done.stderr}")


def _install(arch: str, root: Path, *what: str) -> None:
    target = root / PACKAGES
    _uv(
        *("pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy"),
        *("--python", sys.executable, "--python-version", PYTHON, "--python-platform", _PLATFORMS[arch]),
        *("--target", str(target), *what),
    )
    for pattern in _UNUSED:
        for found in list(target.glob(pattern)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()


def _uv(*words: str, environment: dict[str, str] | None = None) -> None:
    program = Path(sys.executable).with_name("uv")
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"uv {words[0]}: {done.stderr.strip()}")
