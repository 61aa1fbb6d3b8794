"""One look at everything that belongs to an EldrDeployment."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eldr import contract
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import owner_uids
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.queue import Key
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_CHILDREN = tuple(WATCHED.keys() - {contract.KIND_DEPLOYMENT, contract.KIND_FIT, "Pod"})
_SECRET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was found.

    Parameters
    ----------
    children : mapping
        Kind and name to object, for everything that carries our labels.
    pods : list of dict
    secret : dict or None
        The Secret of the admin ports, whoever owns it.
    """

    children: Mapping[tuple[str, str], Object]
    pods: list[Object]
    secret: Object | None

    def owned(self, kind: str, name: str, uid: str) -> Object | None:
        """Return a child, if the resource of that uid owns it."""
        found = self.children.get((kind, name))
        return found if found is not None and uid in owner_uids(found) else None

    def of_kind(self, kind: str) -> dict[str, Object]:
        """Return the children of a kind by name."""
        return {name: found for (its, name), found in self.children.items() if its == kind}

    def surplus(self, wanted: Iterable[Object], uid: str) -> list[tuple[str, Object]]:
        """Return the children that the resource of that uid owns and does not want any more."""
        kept = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
        return [
            (kind, found)
            for (kind, name), found in self.children.items()
            if kind not in {"ConfigMap", "Job"} and (kind, name) not in kept and uid in owner_uids(found)
        ]

    @property
    def token(self) -> str:
        """The bearer token of the admin ports; empty while there is none."""
        try:
            return base64.b64decode(
                ((self.secret or {}).get("data") or {})[contract.SECRET_TOKEN_KEY]
            ).decode()
        except (KeyError, binascii.Error, UnicodeDecodeError):
            return ""


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
