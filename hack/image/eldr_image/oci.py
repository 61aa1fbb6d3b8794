"""An OCI archive: layers, configuration, manifest and index, the same bytes from the same folders.

Source: OCI image format specification 1.1, image-layout, manifest, image-index, config.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
REF = "org.opencontainers.image.ref.name"

Json = dict[str, Any]


class Layer(NamedTuple):
    """A compressed layer, and the digest of what it holds."""

    content: bytes
    diff: str


class Layout:
    """A folder in the form of an OCI layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True)

    def blob(self, content: bytes, media_type: str) -> Json:
        """Keep a blob and return its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def image(self, arch: str, layers: list[Layer], created: str, process: Json, annotations: Json) -> Json:
        """Keep an image of an architecture and return its descriptor."""
        platform = {"architecture": arch, "os": "linux"}
        config = {
            "created": created,
            **platform,
            "config": {**process, "Labels": annotations},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(_json(config), CONFIG),
            "layers": [self.blob(layer.content, LAYER) for layer in layers],
            "annotations": annotations,
        }
        return {**self.blob(_json(manifest), MANIFEST), "platform": platform}

    def finish(self, images: list[Json], tag: str, annotations: Json) -> str:
        """Write the index under a tag and return its digest."""
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": images,
            "annotations": annotations,
        }
        found = {**self.blob(_json(index), INDEX), "annotations": {REF: tag}}
        top = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [found]}
        (self.folder / "index.json").write_bytes(_json(top))
        (self.folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
        digest: str = found["digest"]
        return digest

    def archive(self, out: Path) -> None:
        """Write the layout as one file."""
        with out.open("wb") as file:
            _pack(self.folder, file)


def layer(folder: Path) -> Layer:
    """Return what a folder holds as a layer: sorted, owned by root, without times."""
    plain = io.BytesIO()
    _pack(folder, plain)
    content = plain.getvalue()
    packed = gzip.compress(content, compresslevel=6, mtime=0)
    return Layer(packed, f"sha256:{hashlib.sha256(content).hexdigest()}")


def _pack(folder: Path, file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in _entries(folder, archive):
            archive.addfile(*entry)


def _entries(folder: Path, archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, io.BytesIO | None]]:
    for path in sorted(folder.rglob("*")):
        info = archive.gettarinfo(path, str(path.relative_to(folder)))
        if (
            info.type == tarfile.LNKTYPE
        ):  # hard linked by a cache of this machine: a file of its own in the image
            info.type, info.size = tarfile.REGTYPE, path.stat().st_size
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        # as wherever it was unpacked: who may write is the same, whatever this user's umask
        info.mode = 0o1777 if info.mode & 0o1000 else 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        if info.isreg():
            yield info, io.BytesIO(path.read_bytes())
        else:
            yield info, None


def _json(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
