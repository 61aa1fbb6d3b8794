"""Pod volumes as folders: ConfigMaps and Secrets that follow updates, emptyDirs, projected tokens."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eldr_kube.agent.api import Api, ApiError
from eldr_kube.agent.environment import MissingSourceError, field_value

Object = dict[str, Any]
Files = dict[str, bytes]
_TOKEN_SHARE = 0.8  # of its life after which a token is renewed, as the kubelet does


class Sources:
    """ConfigMaps, Secrets and tokens of one pod.

    Parameters
    ----------
    api : Api
    pod : dict
    address : str
        The pod's IP address.
    """

    def __init__(self, api: Api, pod: Object, address: str) -> None:
        self._api = api
        self._pod = pod
        self._address = address
        self._tokens: dict[str, tuple[float, bytes]] = {}

    async def data(self, kind: str, name: str) -> Files | None:
        """Return the decoded contents of a ConfigMap or Secret, or None where it does not exist."""
        namespace = self._pod["metadata"]["namespace"]
        plural = "configmaps" if kind == "ConfigMap" else "secrets"
        try:
            found = await self._api.call("GET", f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        if kind == "Secret":
            return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
        text = {key: value.encode() for key, value in (found.get("data") or {}).items()}
        return text | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}

    async def text(self, kind: str, name: str) -> dict[str, str] | None:
        """Return the same as text, for environment variables."""
        data = await self.data(kind, name)
        return None if data is None else {key: value.decode(errors="replace") for key, value in data.items()}

    async def files(self, volume: Object) -> Files | None:
        """Return the files of a volume, or None for one that the pod writes itself.

        Raises
        ------
        MissingSourceError
            If a source that is not optional does not exist.
        """
        if "emptyDir" in volume:
            return None
        if "projected" in volume:
            files: Files = {}
            for source in volume["projected"].get("sources", []):
                files |= await self._source(source)
            return files
        if "secret" in volume:
            secret = volume["secret"]
            return await self._source({"secret": {**secret, "name": secret["secretName"]}})
        return await self._source(volume)

    async def _source(self, source: Object) -> Files:
        if wanted := source.get("configMap"):
            return _choose(await self.data("ConfigMap", wanted["name"]), "ConfigMap", wanted)
        if wanted := source.get("secret"):
            return _choose(await self.data("Secret", wanted["name"]), "Secret", wanted)
        if wanted := source.get("downwardAPI"):
            pod, address = self._pod, self._address
            items = wanted.get("items", [])
            return {
                item["path"]: field_value(pod, item["fieldRef"]["fieldPath"], address).encode()
                for item in items
            }
        if wanted := source.get("serviceAccountToken"):
            return {wanted["path"]: await self._token(wanted)}
        kinds = ", ".join(key for key in source if key != "name")
        raise MissingSourceError(f"volume source {kinds} is not known to the node agent")

    async def _token(self, wanted: Object) -> bytes:
        audience = wanted.get("audience", "")
        renew, token = self._tokens.get(audience, (0.0, b""))
        if time.monotonic() < renew:
            return token
        metadata = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName", "default")
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        seconds = wanted.get("expirationSeconds", 3600)
        spec = {"expirationSeconds": seconds, "boundObjectRef": bound} | (
            {"audiences": [audience]} if audience else {}
        )
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        answer = await self._api.call("POST", path, {"spec": spec})
        token = str(answer["status"]["token"]).encode()
        self._tokens[audience] = (time.monotonic() + _TOKEN_SHARE * seconds, token)
        return token


def _choose(data: Files | None, kind: str, wanted: Object) -> Files:
    if data is None:
        if wanted.get("optional"):
            return {}
        raise MissingSourceError(f"{kind} {wanted['name']!r} not found")
    if "items" not in wanted:
        return data
    missing = [item["key"] for item in wanted["items"] if item["key"] not in data]
    if missing and not wanted.get("optional"):
        raise MissingSourceError(f"{kind} {wanted['name']!r} has no key {missing[0]!r}")
    return {item["path"]: data[item["key"]] for item in wanted["items"] if item["key"] in data}


class Volumes:
    """The folders of one pod's volumes.

    Parameters
    ----------
    folder : Path
        Where they live.
    sources : Sources
    volumes : list of dict
        ``spec.volumes`` of the pod.
    """

    def __init__(self, folder: Path, sources: Sources, volumes: list[Object]) -> None:
        self._folder = folder
        self._sources = sources
        self._volumes = volumes
        self._written: dict[str, Files] = {}

    async def write(self) -> None:
        """Write all volumes, or only what has changed since the last call.

        Raises
        ------
        MissingSourceError
            If a source does not exist.
        """
        for volume in self._volumes:
            folder = self._folder / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            files = await self._sources.files(volume)
            if files is not None and files != self._written.get(volume["name"]):
                swap(folder, files)
                self._written[volume["name"]] = files

    @property
    def follows(self) -> bool:
        """Whether any volume can change while the pod runs."""
        return any("emptyDir" not in volume for volume in self._volumes)

    def mounts(self, container: Object) -> Iterator[tuple[Path, str, bool]]:
        """Yield ``(source, target, read_only)`` for each mount of a container."""
        for mount in container.get("volumeMounts", []):
            source = self._folder / mount["name"]
            if sub_path := mount.get("subPath"):
                source = source / sub_path
                if not source.exists():
                    source.mkdir(parents=True)
            yield source, mount["mountPath"], bool(mount.get("readOnly"))


def swap(folder: Path, files: Files) -> None:
    """Replace a folder's files at once, as the kubelet does: every name leads through the link ``..data``."""
    version = f"..{time.time_ns()}"
    fresh = folder / version
    for name, content in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    fresh.mkdir(exist_ok=True)
    link = folder / "..data"
    old = link.readlink() if link.is_symlink() else None
    staged = folder / "..data_tmp"
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
