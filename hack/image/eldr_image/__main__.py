"""`make image`: an OCI archive for each architecture asked for, and a bill of materials beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from eldr_image import debian, lock, oci, sbom, wheels
from eldr_image.debian import ImageError
from eldr_kube.binaries import user_cache

CACHE = user_cache() / "image"
USER = "65532:65532"
PROCESS = {
    "User": USER,
    "Entrypoint": ["eldr"],
    "WorkingDir": "/",
    "Env": [
        "PATH=/opt/eldr/bin:/usr/bin:/bin",
        "HOME=/tmp",
        "MPLCONFIGDIR=/tmp",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONUNBUFFERED=1",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    ],
}
"""Nothing is written below /: it runs with a read-only root file system and an emptyDir on /tmp."""
_LICENCES = """# Licences of dependencies

ELDR is under the Apache License 2.0. The image holds these Python packages, each under its own licence, as its metadata states it.
`hack/image/lock` writes this page. Debian's packages keep their licences in the image, in `/usr/share/doc/*/copyright`.
"""


def epoch() -> int:
    """Return when this was made, in seconds: SOURCE_DATE_EPOCH, or the time of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    return int(_git("log", "-1", "--format=%ct") or 0)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=wheels.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def roots(arch: str, scratch: Path, made: int) -> list[Path]:
    """Unpack the layers: Debian's packages, locked wheels, our own."""
    base, dependencies, own = (scratch / arch / name for name in ("base", "dependencies", "own"))
    for folder in (base, dependencies, own):
        folder.mkdir(parents=True)
    debian.unpack(arch, CACHE, base)
    interpreter = base
    if arch != wheels.host():
        interpreter = scratch / "interpreter"
        if not interpreter.exists():
            interpreter.mkdir()
            debian.unpack(wheels.host(), CACHE, interpreter)
    wheels.dependencies(arch, dependencies)
    wheels.own(arch, own, scratch / arch / "wheel", made)
    for folder in (base, dependencies, own):
        wheels.compile_all(folder, interpreter)
    return [base, dependencies, own]


@click.group()
def main() -> None:
    """Build the image of operator, router, fit and simulated engines."""


@main.command()
@click.option(
    "--arch", "arches", multiple=True, help="amd64 or arm64, once or more. Default: this machine's."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out"), help="Folder for what is built.")
def build(arches: tuple[str, ...], out: Path) -> None:
    """Write eldr-VERSION.oci.tar, and a bill of materials for each architecture."""
    release, made = version("eldr"), epoch()
    created = datetime.fromtimestamp(made, UTC).isoformat().replace("+00:00", "Z")
    annotations = {
        "org.opencontainers.image.title": "ELDR",
        "org.opencontainers.image.version": release,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.revision": _git("rev-parse", "HEAD"),
        "org.opencontainers.image.source": "https://github.com/eldr/eldr",
    }
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="eldr-image-") as folder:
        layout = oci.Layout(Path(folder) / "layout")
        images = []
        for arch in dict.fromkeys(arches or (wheels.host(),)):
            click.echo(f"building for {arch}")
            parts = roots(arch, Path(folder), made)
            layers = [oci.layer(part) for part in parts]
            images.append(layout.image(arch, layers, created, PROCESS, annotations))
            bill = sbom.bom(arch, release, debian.read(arch)[1], sbom.installed(*parts))
            (out / f"eldr-{release}-{arch}.cdx.json").write_text(bill)
        digest = layout.finish(images, release, annotations)
        archive = out / f"eldr-{release}.oci.tar"
        layout.archive(archive)
    click.echo(f"{archive}: {archive.stat().st_size >> 20} MB, {digest}")


@main.command()
@click.option("--arch", help="amd64 or arm64. Default: this machine's.")
@click.argument("folder", type=click.Path(path_type=Path, exists=False))
def rootfs(arch: str | None, folder: Path) -> None:
    """Unpack the image into a new FOLDER: the recipe of the Containerfile."""
    with tempfile.TemporaryDirectory(prefix="eldr-image-") as scratch:
        for part in roots(arch or wheels.host(), Path(scratch), epoch()):
            shutil.copytree(part, folder, symlinks=True, dirs_exist_ok=True)


@main.command("licences")
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def licences(folder: Path) -> None:
    """Print the licences of the Python packages in an unpacked FOLDER as a page."""
    rows = [f"| {one.name} | {one.licence} |" for one in sbom.installed(folder) if one.name != "eldr"]
    click.echo("\n".join([_LICENCES, "| package | licence |", "|---|---|", *rows]))


@main.command("lock")
def relock() -> None:
    """Rewrite debian.lock with what Debian has today; hack/image/lock calls it."""
    lock.write()


if __name__ == "__main__":
    try:
        main()
    except ImageError as error:
        raise SystemExit(f"error: {error}") from None
