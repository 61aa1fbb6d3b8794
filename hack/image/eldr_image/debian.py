"""Debian's packages of the image: locked by hash, fetched once, unpacked without being installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import httpx

LOCK = Path(__file__).resolve().parents[1] / "debian.lock"
MIRROR_VARIABLE = "ELDR_DEBIAN_MIRROR"
TRIPLES = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
"""Folder of the libraries, by Debian's name of the architecture."""
LOADERS = {"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}
"""Path of the dynamic loader below /usr."""
SNAPSHOT = "https://snapshot.debian.org/archive"
"""Keeps what mirrors have dropped, by the day of the lock."""
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
_UNUSED = (
    "usr/share/doc/*/[!c]*",
    "usr/share/doc/*/c[!o]*",
    "usr/share/lintian",
    "usr/share/man",
    "usr/share/base-files",
    "usr/share/binfmts",
    "usr/lib/binfmt.d",
    "usr/lib/*/gconv",
    "usr/games",
    "usr/include",
    "boot",
    "home",
    "var/lock",
    "var/local",
    "var/mail",
    "var/backups",
    "etc/skel",
    "etc/update-motd.d",
)
"""Documentation but licences, character sets that Python has itself, and what only a shell reads."""
_PASSWD = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n"
_GROUP = "root:x:0:\nnonroot:x:65532:\n"


class ImageError(Exception):
    """The image cannot be built here; the message says what is missing."""


class Deb(NamedTuple):
    """A locked package: its path is below the root of a mirror."""

    arch: str
    name: str
    version: str
    sha256: str
    path: str


def read(arch: str, lock: Path = LOCK) -> tuple[str, list[Deb]]:
    """Return the day of the lock, as snapshots are named, and the packages of an architecture.

    Raises
    ------
    ImageError
        No package of this architecture is locked.
    """
    day, *lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    debs = [deb for line in lines if (deb := Deb(*line.split())).arch == arch]
    if not debs:
        raise ImageError(f"architecture {arch!r}: take one of {', '.join(TRIPLES)}")
    return day, debs


def mirror() -> str | None:
    """Return the root of a Debian mirror: that of the environment, or of this machine's apt."""
    if given := os.environ.get(MIRROR_VARIABLE):
        return given.rstrip("/")
    if shutil.which("apt-get"):
        asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
        for line in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines():
            if line.startswith("http") and line.endswith("/debian/"):
                return line.removesuffix("/debian/")
    return None


def fetch(deb: Deb, day: str, cache: Path) -> Path:
    """Return a package's file, from the cache, the mirror or the snapshot of the day, in this order.

    Raises
    ------
    ImageError
        Nobody has it.
    """
    file = cache / f"{deb.sha256}.deb"
    if file.exists():
        return file
    cache.mkdir(parents=True, exist_ok=True)
    archive, _, rest = deb.path.partition("/")
    tried = []
    known = mirror()
    for address in (*([f"{known}/{deb.path}"] if known else ()), f"{SNAPSHOT}/{archive}/{day}/{rest}"):
        try:
            answer = httpx.get(address, follow_redirects=True, timeout=60)
        except httpx.HTTPError as error:
            tried.append(f"{address}: {error}")
            continue
        if answer.is_success and hashlib.sha256(answer.content).hexdigest() == deb.sha256:
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_bytes(answer.content)
            partial.rename(file)
            return file
        tried.append(f"{address}: {answer.status_code if not answer.is_success else 'another content'}")
    raise ImageError(
        "\n".join(
            [
                f"{deb.name} {deb.version} cannot be fetched; `hack/image/lock` takes what Debian has today",
                *tried,
            ]
        )
    )


def unpack(arch: str, cache: Path, root: Path) -> None:
    """Unpack all packages of an architecture into an empty folder, and add what their scripts would have made."""
    if not shutil.which("dpkg-deb"):
        raise ImageError("dpkg-deb is missing: install the package dpkg, or use the Containerfile")
    day, debs = read(arch)
    for link, target in _LINKS.items():
        (root / target).mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(target)
    for deb in debs:
        file = fetch(deb, day, cache)
        subprocess.run(["dpkg-deb", "--extract", file, root], check=True)
        control = subprocess.run(["dpkg-deb", "--field", file], capture_output=True, check=True).stdout
        known = root / "var/lib/dpkg/status.d" / deb.name  # where scanners look in images without dpkg
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_bytes(control)
    for pattern in _UNUSED:
        for found in root.glob(pattern):
            shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink()
    _configure(root)


def _configure(root: Path) -> None:
    etc = root / "etc"
    (etc / "passwd").write_text(_PASSWD)
    (etc / "group").write_text(_GROUP)
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")
    bundle = etc / "ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle.write_text("".join(file.read_text().rstrip("\n") + "\n" for file in certificates))
    (root / "usr/lib/ssl/cert.pem").unlink(missing_ok=True)
    (root / "usr/lib/ssl").mkdir(exist_ok=True)
    (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")
    (root / "tmp").chmod(0o1777)
