"""What volumes and variables are filled from: ConfigMaps, Secrets, tokens, the pod itself."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eldr_kube.agent.api import Api, ApiError
from eldr_kube.agent.environment import MissingSourceError, field_value
from eldr_kube.agent.resources import resource_value

Object = dict[str, Any]
_TOKEN_SHARE = 0.8  # of its life after which a token is renewed, as the kubelet does
_MODE = 0o644


@dataclass(frozen=True, slots=True)
class File:
    """A file of a volume."""

    content: bytes
    mode: int = _MODE


Files = dict[str, File]


class Sources:
    """ConfigMaps, Secrets and tokens of one pod.

    Parameters
    ----------
    pod : dict
    address : str
        The pod's IP address.
    """

    def __init__(self, api: Api, pod: Object, address: str) -> None:
        self.pod = pod
        self._api = api
        self._address = address
        self._tokens: dict[tuple[str, int], tuple[float, bytes]] = {}

    async def data(self, kind: str, name: str) -> dict[str, bytes] | None:
        """Return the decoded contents of a ConfigMap or Secret, or None where it does not exist."""
        namespace = self.pod["metadata"]["namespace"]
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

    async def claim(self, name: str) -> Path:
        """Return the folder of the volume that a claim is bound to; MissingSourceError if there is none on this machine."""
        namespace = self.pod["metadata"]["namespace"]
        found = await self._api.call("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
        bound = found["spec"].get("volumeName")
        if not bound:
            raise MissingSourceError(f"PersistentVolumeClaim {name!r} is not bound")
        volume = (await self._api.call("GET", f"/api/v1/persistentvolumes/{bound}"))["spec"]
        source = volume.get("hostPath") or volume.get("local")
        if source is None:
            raise MissingSourceError(f"PersistentVolume {bound!r} is neither hostPath nor local")
        return Path(source["path"])

    async def files(self, volume: Object) -> Files:
        """Return the files of a volume that the agent fills; MissingSourceError if a source that is not optional does not exist."""
        files: Files = {}
        for source, mode in parts(volume):
            files |= await self._part(source, mode)
        return files

    async def _part(self, source: Object, mode: int) -> Files:
        if wanted := source.get("configMap"):
            return choose(await self.data("ConfigMap", wanted["name"]), "ConfigMap", wanted, mode)
        if wanted := source.get("secret"):
            return choose(await self.data("Secret", wanted["name"]), "Secret", wanted, mode)
        if wanted := source.get("downwardAPI"):
            return {
                item["path"]: File(self._downward(item), item.get("mode", mode))
                for item in wanted.get("items", [])
            }
        if wanted := source.get("serviceAccountToken"):
            return {wanted["path"]: File(await self._token(wanted), mode)}
        kinds = ", ".join(key for key in source if key != "name")
        raise MissingSourceError(f"volume source {kinds} is not known to the node agent")

    def _downward(self, item: Object) -> bytes:
        if "fieldRef" in item:
            return field_value(self.pod, item["fieldRef"]["fieldPath"], self._address).encode()
        reference = item["resourceFieldRef"]
        container = next(c for c in self.pod["spec"]["containers"] if c["name"] == reference["containerName"])
        return resource_value(container, reference).encode()

    async def _token(self, wanted: Object) -> bytes:
        audience, seconds = wanted.get("audience", ""), int(wanted.get("expirationSeconds", 3600))
        renew, token = self._tokens.get((audience, seconds), (0.0, b""))
        if time.monotonic() < renew:
            return token
        metadata = self.pod["metadata"]
        account = self.pod["spec"].get("serviceAccountName", "default")
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec: Object = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if audience:
            spec["audiences"] = [audience]
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        answer = await self._api.call("POST", path, {"spec": spec})
        token = str(answer["status"]["token"]).encode()
        self._tokens[audience, seconds] = (time.monotonic() + _TOKEN_SHARE * seconds, token)
        return token

    @property
    def renewal(self) -> float | None:
        """Seconds until a token has to be renewed; None without tokens."""
        moments = [renew for renew, _ in self._tokens.values()]
        return max(0.0, min(moments) - time.monotonic()) if moments else None


def parts(volume: Object) -> Iterator[tuple[Object, int]]:
    """Yield the sources of a volume that the agent fills, in the shape that projected volumes have, with their mode."""
    if "projected" in volume:
        mode = volume["projected"].get("defaultMode", _MODE)
        for source in volume["projected"].get("sources") or []:
            yield source, mode
    elif secret := volume.get("secret"):
        yield {"secret": {**secret, "name": secret["secretName"]}}, secret.get("defaultMode", _MODE)
    else:
        kind = next(iter(key for key in volume if key != "name"), "")
        yield volume, (volume.get(kind) or {}).get("defaultMode", _MODE)


def references(pod: Object) -> set[tuple[str, str]]:
    """Return ``(kind, name)`` of every ConfigMap and Secret that a pod's volumes show."""
    found = set()
    for volume in pod["spec"].get("volumes") or []:
        for source, _ in parts(volume):
            for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                if key in source:
                    found.add((kind, source[key]["name"]))
    return found


def choose(data: dict[str, bytes] | None, kind: str, wanted: Object, mode: int) -> Files:
    """Return the files that a source asks for; MissingSourceError if the object or a wanted key does not exist and is not optional."""
    if data is None:
        if wanted.get("optional"):
            return {}
        raise MissingSourceError(f"{kind} {wanted['name']!r} not found")
    if not wanted.get("items"):
        return {name: File(content, mode) for name, content in data.items()}
    missing = [item["key"] for item in wanted["items"] if item["key"] not in data]
    if missing and not wanted.get("optional"):
        raise MissingSourceError(f"{kind} {wanted['name']!r} has no key {missing[0]!r}")
    return {
        item["path"]: File(data[item["key"]], item.get("mode", mode))
        for item in wanted["items"]
        if item["key"] in data
    }
