"""The only writer of children: server-side apply, left out where nothing would change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from eldr import contract
from eldr_operator.errors import ApiError, ConflictError, OwnedElsewhereError
from eldr_operator.kube.api import Api
from eldr_operator.kube.cache import Cache
from eldr_operator.metrics import Metrics

Object = dict[str, Any]
Key = tuple[str, str]


def owner_uids(live: Mapping[str, Any]) -> list[str]:
    """Return the uids of an object's owners."""
    return [owner["uid"] for owner in live["metadata"].get("ownerReferences") or ()]


class Applier:
    """Applies manifests.

    What was applied is remembered with the live object's generation (or resourceVersion, where the kind has none).
    While both stay, nothing is sent: an idle operator writes nothing, and a foreign change is still undone.

    Parameters
    ----------
    api : Api
    cache : Cache
        Is told what was written.
    metrics : Metrics
    """

    def __init__(self, api: Api, cache: Cache, metrics: Metrics) -> None:
        self._api = api
        self._cache = cache
        self._metrics = metrics
        self._applied: dict[Key, dict[Key, tuple[str, str]]] = {}

    async def apply(
        self, owner: Key, manifest: Object, live: Object | None, *, is_memory: bool = False
    ) -> Object:
        """Bring one child to its manifest.

        Parameters
        ----------
        owner : tuple of str
            Namespace and name of the custom resource.
        manifest : dict
            With one owner reference.
        live : dict or None
            The child as listed by label; None if it was not found.
        is_memory : bool
            Whether the manifest was made from ``live``: then nothing is written if the child has changed since.

        Returns
        -------
        dict
            The live object, at least its metadata.

        Raises
        ------
        OwnedElsewhereError
            If an object of that name belongs to something else; it is left alone.
        ConflictError
            If a memory has changed since it was read; look again.
        """
        kind, metadata = manifest["kind"], manifest["metadata"]
        if live is None:
            live = await self._api.get(kind, metadata["namespace"], metadata["name"], metadata_only=True)
            if live is not None and metadata["ownerReferences"][0]["uid"] not in owner_uids(live):
                raise owned_elsewhere(kind, owner[1], live)
            if live is not None and is_memory:
                raise ConflictError(kind, metadata["name"])  # it is there, and the manifest does not know it
        remembered = self._applied.setdefault(owner, {})
        key, digest = (kind, metadata["name"]), _digest(manifest)
        if live is not None and remembered.get(key) == (digest, _version(live)):
            return live
        self._metrics.writes.labels(kind, "apply").inc()
        applied = await (self._write_over(manifest, live) if is_memory else self._api.apply(manifest))
        self._cache.put(kind, applied)
        remembered[key] = (digest, _version(applied))
        return applied

    async def _write_over(self, manifest: Object, live: Object | None) -> Object:
        """Apply what was made from ``live``, or create what was not there."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        try:
            if live is None:
                return await self._api.create(manifest)
            version = {"resourceVersion": live["metadata"]["resourceVersion"]}
            return await self._api.apply(manifest | {"metadata": metadata | version})
        except ApiError as error:
            if error.status == 409:
                raise ConflictError(kind, metadata["name"]) from None
            raise

    async def patch(self, manifest: Object, subresource: str = "") -> Object:
        """Apply part of an object that somebody else made; the caller compared already."""
        self._metrics.writes.labels(manifest["kind"], subresource or "patch").inc()
        applied = await self._api.apply(manifest, subresource)
        self._cache.put(manifest["kind"], applied)
        return applied

    async def create(self, manifest: Object) -> Object:
        """Create an object that is never changed afterwards."""
        self._metrics.writes.labels(manifest["kind"], "create").inc()
        created = await self._api.create(manifest)
        self._cache.put(manifest["kind"], created)
        return created

    async def delete(self, kind: str, live: Mapping[str, Any]) -> None:
        """Delete an object that was listed."""
        metadata = live["metadata"]
        self._metrics.writes.labels(kind, "delete").inc()
        await self._api.delete(kind, metadata["namespace"], metadata["name"], metadata["uid"])

    def forget(self, owner: Key) -> None:
        """Drop what is remembered of a custom resource that is gone."""
        self._applied.pop(owner, None)


def _digest(manifest: Object) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _version(live: Mapping[str, Any]) -> str:
    metadata = live["metadata"]
    return f"{metadata['uid']}/{metadata.get('generation') or metadata['resourceVersion']}"


def owned_elsewhere(kind: str, deployment: str, live: Mapping[str, Any]) -> OwnedElsewhereError:
    """Return the error that an object of a deployment's child belongs to something else."""
    owners = live["metadata"].get("ownerReferences") or ()
    name = live["metadata"]["name"]
    if not owners:
        return OwnedElsewhereError(kind, name, "nobody")
    shown = f"{owners[0]['kind']} {owners[0]['name']} (uid {owners[0]['uid']})"
    is_leftover = (owners[0]["kind"], owners[0]["name"]) == (contract.KIND_DEPLOYMENT, deployment)
    return OwnedElsewhereError(kind, name, shown, is_leftover=is_leftover)
