"""Write the lock of Debian's packages: what a mirror has today of a named list, for each architecture."""

from __future__ import annotations

import os
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from eldr_image.debian import LOCK, MIRROR_VARIABLE, TRIPLES, ImageError, mirror

RELEASE = "trixie"
PACKAGES = (
    "base-files",
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.13-minimal",
    "libpython3.13-stdlib",
    "libssl3t64",
    "libstdc++6",
    "libuuid1",
    "libzstd1",
    "media-types",
    "netbase",
    "python3.13-minimal",
    "tzdata",
    "zlib1g",
)
"""An interpreter, what its extension modules link, and what wheels expect of a system. No shell, no package manager."""
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_ARCHIVES = (
    ("debian", RELEASE),
    ("debian", f"{RELEASE}-updates"),
    ("debian-security", f"{RELEASE}-security"),
)


def write() -> None:
    """Ask the mirror, and rewrite the lock.

    Raises
    ------
    ImageError
        apt or the mirror refuses.
    """
    lines = [
        f"# Debian {RELEASE}: the packages of the image, written by hack/image/lock. The first line names the snapshot.",
        datetime.now(UTC).strftime("%Y%m%dT000000Z"),
    ]
    with tempfile.TemporaryDirectory(prefix="eldr-image-lock-") as scratch:
        for arch in TRIPLES:
            lines += _of(arch, Path(scratch) / arch)
    LOCK.write_text("\n".join(lines) + "\n")


def _of(arch: str, folder: Path) -> list[str]:
    site = mirror()
    if site is None:
        raise ImageError(
            f"no Debian mirror known: set {MIRROR_VARIABLE} to the address above /debian of one in https://www.debian.org/mirror/list"
        )
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "state/status").touch()
    sources = [f"deb [signed-by={_KEYS}] {site}/{archive} {suite} main\n" for archive, suite in _ARCHIVES]
    (folder / "sources.list").write_text("".join(sources))
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "state/status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
    }
    (folder / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}

    def apt(*words: str) -> str:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImageError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    apt("apt-get", "update")
    lines = []
    for package in PACKAGES:
        shown = apt("apt-cache", "show", "--no-all-versions", package)
        fields = dict(line.split(": ", 1) for line in shown.splitlines() if ": " in line and line[0] != " ")
        address = apt("apt-get", "download", "--print-uris", package).split("'")[1]
        path = address.removeprefix(f"{site}/")
        lines.append(f"{arch} {package} {fields['Version']} {fields['SHA256']} {path}")
    return lines
