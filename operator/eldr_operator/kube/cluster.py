"""One look at everything that belongs to an EldrDeployment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from eldr import contract
from eldr_operator.kube.api import Api
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.owners import owner_uids
from eldr_operator.kube.queue import Key
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_CHILDREN = tuple(WATCHED.keys() - {contract.KIND_DEPLOYMENT, contract.KIND_FIT, "Pod"})
_SECRET_SECONDS = 60.0


class Cluster:
    """Looks at deployments.

    Secrets are not watched: the operator may read each by its name, not all of them. They are read now and then, when
    routers refuse the token, and when a pod waits for what its containers refer to.
    """

    def __init__(self, api: Api, cache: Cache, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._cache = cache
        self._monotonic = monotonic
        self._secrets: dict[Key, tuple[float, Object]] = {}

    async def look(self, cr: EldrDeployment) -> Snapshot:
        """Return what belongs to a deployment."""
        namespace = cr.namespace
        children = {
            (kind, found["metadata"]["name"]): found
            for kind in _CHILDREN
            for found in self._cache.of_deployment(kind, namespace, cr.name)
        }
        pods = self._cache.of_deployment("Pod", namespace, cr.name)
        key = (namespace, cr.name)
        if any(map(_waits_for_reference, pods)):
            self.forget(key)
        return Snapshot(children, pods, await self._secret(key, cr.metadata.uid))

    def forget(self, key: Key) -> None:
        """Read the Secret of a deployment again with the next look."""
        self._secrets.pop(key, None)

    async def _secret(self, key: Key, uid: str) -> Object | None:
        at, known = self._secrets.get(key, (0.0, None))
        now = self._monotonic()
        if known is not None and uid in (owner_uids(known) or [uid]) and now - at < _SECRET_SECONDS:
            return known
        found = await self._api.get("Secret", key[0], contract.admin_secret_name(key[1]))
        if found is not None:
            self._secrets[key] = (now, found)
        else:
            self.forget(key)
        return found


def _waits_for_reference(pod: Mapping[str, Any]) -> bool:
    """Tell whether a container cannot be made because a Secret or ConfigMap is missing."""
    status = pod.get("status") or {}
    return any(
        ((container.get("state") or {}).get("waiting") or {}).get("reason") == "CreateContainerConfigError"
        for key in ("initContainerStatuses", "containerStatuses")
        for container in status.get(key) or ()
    )
