"""Pod volumes as folders on this machine."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eldr_kube.agent.environment import MissingSourceError, expand
from eldr_kube.agent.sources import Files, Sources

Object = dict[str, Any]


class Volumes:
    """The folders of one pod's volumes.

    Parameters
    ----------
    folder : Path
        Where they live.
    volumes : list of dict
        ``spec.volumes`` of the pod.
    """

    def __init__(self, folder: Path, sources: Sources, volumes: list[Object]) -> None:
        self._folder = folder
        self._sources = sources
        self._volumes = {volume["name"]: volume for volume in volumes}
        self._written: dict[str, Files] = {}
        self._claims: dict[str, Path] = {}
        self._lock = asyncio.Lock()

    async def write(self) -> None:
        """Write all volumes, or only what has changed since the last call; MissingSourceError if a source does not exist."""
        async with self._lock:
            for name, volume in self._volumes.items():
                if "hostPath" in volume:
                    _require_host_path(volume["hostPath"])
                    continue
                if "persistentVolumeClaim" in volume:
                    if name not in self._claims:  # bound once and for all
                        self._claims[name] = await self._sources.claim(
                            volume["persistentVolumeClaim"]["claimName"]
                        )
                    continue
                folder = self._folder / name
                folder.mkdir(parents=True, exist_ok=True)
                if "emptyDir" in volume:
                    folder.chmod(0o777)
                    continue
                files = await self._sources.files(volume)
                if files != self._written.get(name):
                    swap(folder, files)
                    self._written[name] = files

    def mounts(self, container: Object, variables: Mapping[str, str]) -> Iterator[tuple[Path, str, bool]]:
        """Yield ``(source, target, read_only)`` for each mount; MissingSourceError if a sub-path does not exist and cannot be made."""
        for mount in container.get("volumeMounts") or []:
            volume = self._volumes[mount["name"]]
            host, claim = volume.get("hostPath"), self._claims.get(mount["name"])
            source = claim or (Path(host["path"]) if host else self._folder / mount["name"])
            writable = bool(host) or "emptyDir" in volume
            if claim is not None:
                writable = not volume["persistentVolumeClaim"].get("readOnly")
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr", ""), variables)
            if sub_path:
                source = _below(source, sub_path, may_make=writable)
            yield source, mount["mountPath"], bool(mount.get("readOnly")) or not writable


def _require_host_path(host: Object) -> None:
    path, kind = Path(host["path"]), host.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    if not path.exists():
        raise MissingSourceError(f"hostPath {path} does not exist on this machine")


def _below(folder: Path, sub_path: str, *, may_make: bool) -> Path:
    source = (folder / sub_path).resolve()
    if not source.is_relative_to(folder.resolve()):
        raise MissingSourceError(f"subPath {sub_path!r} leaves its volume")
    if not source.exists():
        if not may_make:
            raise MissingSourceError(f"subPath {sub_path!r} does not exist in its volume")
        source.mkdir(parents=True)
    return source


def swap(folder: Path, files: Files) -> None:
    """Replace a folder's files at once, as the kubelet does: every name leads through the link ``..data``."""
    version = f"..{time.time_ns()}"
    fresh = folder / version
    fresh.mkdir()
    for name, file in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
    link, staged = folder / "..data", folder / "..data_tmp"
    old = link.readlink() if link.is_symlink() else None
    staged.unlink(missing_ok=True)
    staged.symlink_to(version)
    staged.rename(link)
    tops = {name.split("/", 1)[0] for name in files}
    for top in tops:
        visible = folder / top
        if not visible.is_symlink():
            visible.symlink_to(Path("..data") / top)
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None:
        shutil.rmtree(folder / old)
