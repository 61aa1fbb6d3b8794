"""The only writer of children: server-side apply, left out where nothing would change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.backoff import CONFLICT, Backoff
from eldr_operator.errors import ApiError, ConflictError, ForeignConflictError
from eldr_operator.kube import foreign
from eldr_operator.kube.api import Api
from eldr_operator.kube.applied import is_as_applied
from eldr_operator.kube.cache import Cache
from eldr_operator.kube.owners import is_ours, owned_elsewhere, owner_uids
from eldr_operator.metrics import Metrics

Object = dict[str, Any]
Key = tuple[str, str]
Version = tuple[Any, ...]

_NO_VERSION = "1"
"""Of no object: versions grow with every write to the cluster, and the first is the API server's own."""


class Applier:
    """Applies manifests.

    What was applied is remembered with the live object's generation (or resourceVersion, where the kind has none), and with
    its labels and annotations of ours. While these stay, nothing is sent: an idle operator writes nothing, and a foreign
    change of our fields is still undone. After a restart managed fields tell the same. What others undo again and again is restored
    at growing intervals.

    Parameters
    ----------
    cache : Cache
        Is told what was written.
    """

    def __init__(
        self, api: Api, cache: Cache, metrics: Metrics, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._cache = cache
        self._metrics = metrics
        self._applied: dict[Key, dict[Key, tuple[bytes, Version]]] = {}
        self._undos = Backoff(monotonic, CONFLICT)
        self._undone: dict[Key, list[str]] = {}
        self._written_of: set[Key] = set()

    async def apply(
        self,
        owner: Key,
        manifest: Object,
        live: Object | None,
        *,
        is_memory: bool = False,
        manager: str = "",
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
        manager : str
            In whose name a memory is created; empty for the operator's.

        Returns
        -------
        dict
            The live object, at least its metadata.

        Raises
        ------
        OwnedElsewhereError
            If an object of that name belongs to something else; it is left alone.
        ForeignConflictError
            If others change again and again what was restored, until the next attempt.
        ConflictError
            If a memory has changed since it was read; look again.
        """
        kind, metadata = manifest["kind"], manifest["metadata"]
        remembered = self._applied.setdefault(owner, {})
        key, digest = (kind, metadata["name"]), meta.fingerprint(manifest)
        if live is None:
            applied = await self._created(owner, manifest, is_memory=is_memory, manager=manager)
        else:
            version = _version(live, manifest)
            if remembered.get(key) == (digest, version):
                return live
            if key not in remembered and is_as_applied(live, manifest, contract.FIELD_MANAGER):
                remembered[key] = (digest, version)  # by an operator that ran before this one
                return live
            if not is_memory and remembered.get(key, (b"",))[0] == digest:
                self._check_undo(owner, manifest, foreign.lost(live, manifest, contract.FIELD_MANAGER))
            applied = await self._written(manifest, live, is_memory=is_memory)
        self._written_of.add(owner)
        self._cache.put(kind, applied)
        remembered[key] = (digest, _version(applied, manifest))
        return applied

    def _check_undo(self, owner: Key, manifest: Object, lost: str) -> None:
        """Count that others have changed what was applied; raise where it is too early to restore it once more."""
        if not lost:
            return
        kind, name = key = manifest["kind"], manifest["metadata"]["name"]
        if waiting := self._undos.waiting(owner, key):
            raise ForeignConflictError(kind, name, lost, waiting.seconds)
        self._undos.failed(owner, key, "")
        self._undone.setdefault(owner, []).append(f"{kind} {name}: {lost}")

    async def _created(self, owner: Key, manifest: Object, *, is_memory: bool, manager: str) -> Object:
        """Make a child that is not known, or bring it to its manifest where there is one that lacks our labels or owner.

        An apply makes an object that is not there, whatever version it names. One that is there has another, which is a
        conflict: so nothing is merged into what may be somebody else's.
        """
        kind, metadata = manifest["kind"], manifest["metadata"]
        if self._cache.get(kind, metadata["namespace"], metadata["name"]) is None:
            made_anew = manifest | {"metadata": metadata | {"resourceVersion": _NO_VERSION}}
            self._metrics.writes.labels(kind, "apply").inc()
            try:
                if is_memory:
                    return await self._api.create(manifest, manager or contract.FIELD_MANAGER)
                return await self._api.apply(made_anew)
            except ApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
        live = await self._unlisted(owner, manifest)
        if live is not None:
            self._check_undo(owner, manifest, foreign.lost(live, manifest, contract.FIELD_MANAGER))
        if live is not None and is_memory:
            await self.take_back(manifest, live)
            raise ConflictError(kind, metadata["name"])  # it is there, and the manifest does not know it
        return await self._written(manifest, live, is_memory=is_memory)

    async def _unlisted(self, owner: Key, manifest: Object) -> Object | None:
        """Return the metadata of a child that lacks our labels or owner, or is not known yet; None if there is none."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        live = await self._api.get(kind, metadata["namespace"], metadata["name"], metadata_only=True)
        uid = metadata["ownerReferences"][0]["uid"]
        if live is not None and not is_ours(live, owner[1], uid):
            raise owned_elsewhere(kind, owner[1], live)
        return live

    async def take_back(self, manifest: Object, live: Object) -> None:
        """Give a child its labels and owner back, and leave the rest as it is."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        fields = ["labels"] if owner_uids(live) else ["labels", "ownerReferences"]
        patch = [{"op": "add", "path": f"/metadata/{field}", "value": metadata[field]} for field in fields]
        self._metrics.writes.labels(kind, "patch").inc()
        made = await self._api.json_patch(
            kind, metadata["namespace"], metadata["name"], patch, contract.FIELD_MANAGER
        )
        self._cache.put(kind, made)

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

    async def _written(self, manifest: Object, live: Object | None, *, is_memory: bool) -> Object:
        self._metrics.writes.labels(manifest["kind"], "apply").inc()
        if is_memory:
            return await self._write_over(manifest, live)
        try:
            return await self._api.apply(manifest)
        except ApiError as error:
            others = foreign.writers(live, contract.FIELD_MANAGER) if live is not None else ""
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or not others:
                raise
            text = f"{error.message}; fields of it are also set by {others}, and may be what is refused"
            raise ApiError(error.status, error.reason, text) from None

    def take_undone(self, owner: Key) -> list[str]:
        """Return what others had changed and was restored since this was asked last, with who did it."""
        return self._undone.pop(owner, [])

    def take_written(self, owner: Key) -> bool:
        """Tell whether a child was written since this was asked last: no watch tells a pass of its own writes."""
        is_written = owner in self._written_of
        self._written_of.discard(owner)
        return is_written

    async def patch(self, manifest: Object, subresource: str = "") -> Object:
        """Apply part of an object that somebody else made; the caller compared already."""
        self._metrics.writes.labels(manifest["kind"], subresource or "patch").inc()
        applied = await self._api.apply(manifest, subresource)
        self._cache.put(manifest["kind"], applied)
        return applied

    async def patch_status(self, kind: str, namespace: str, name: str, uid: str, status: Object) -> bool:
        """Apply a status to the object that it was made for; tell whether that is still there.

        An API server compares versions, but no uids, where a status is applied: one made from an object that was
        deleted and made anew meanwhile would pass.

        Raises
        ------
        ConflictError
            If the object has changed since the cache was told, or is another of the same name; look again.
        """
        live = self._cache.get(kind, namespace, name)
        if live is None:
            return False
        if live["metadata"]["uid"] != uid:
            raise ConflictError(kind, name)
        metadata = {
            "name": name,
            "namespace": namespace,
            "resourceVersion": live["metadata"]["resourceVersion"],
        }
        manifest = {"apiVersion": contract.API_VERSION, "kind": kind, "metadata": metadata, "status": status}
        try:
            await self.patch(manifest, "status")
        except ApiError as error:
            if error.status == 409:
                raise ConflictError(kind, name) from None
            if error.status == 404:
                self._cache.remove(kind, live)  # a watch that broke does not tell what went meanwhile
                return False
            raise
        return True

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
        self._undos.forget(owner)
        self._undone.pop(owner, None)
        self._written_of.discard(owner)


def _version(live: Object, manifest: Object) -> Version:
    """Return what changes when somebody changes what the manifest holds: labels and annotations make no new generation."""
    metadata, wanted = live["metadata"], manifest["metadata"]
    head = (
        (metadata.get(field) or {}).get(key)
        for field in ("labels", "annotations")
        for key in wanted.get(field, ())
    )
    return metadata["uid"], metadata.get("generation") or metadata["resourceVersion"], *head
