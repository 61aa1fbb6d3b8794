"""Creates the Secret of the admin ports where there may be none: it is never read, so pods and routers show whether it is there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from eldr import contract
from eldr_operator.conditions import has_ended
from eldr_operator.errors import ApiError
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.queue import Key
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.kube.tokens import Tokens
from eldr_operator.models import EldrDeployment
from eldr_operator.unwritten import Unwritten, Writes
from eldr_operator.workloads import desired, ended, roles

_AGAIN = timedelta(seconds=15)
"""Between two attempts: an earlier deployment of the name may have left a Secret that is about to be collected."""
_VARIABLE = "CreateContainerConfigError"
"""Of a container whose variable is of a missing Secret, as that of a fit."""
_VOLUME = {"ContainerCreating", "PodInitializing"}
"""Of a container whose volume may be of one, as that of a router."""


class AdminSecrets:
    """Creates Secrets of admin ports.

    Parameters
    ----------
    tokens : Tokens
        Of the routers' admin ports.
    """

    def __init__(self, applier: Applier, tokens: Tokens) -> None:
        self._applier = applier
        self._tokens = tokens
        self._tried: dict[Key, tuple[str, datetime]] = {}
        self._refused: set[Key] = set()

    def refused(self, key: Key) -> None:
        """Record that routers refuse the operator's token: once the Secret is deleted, it is created with that token."""
        self._refused.add(key)

    def forget(self, key: Key) -> None:
        """Drop what is known of a deployment that is gone."""
        self._tried.pop(key, None)
        self._refused.discard(key)

    async def ensure(
        self, writes: Writes, cr: EldrDeployment, live: Snapshot, now: datetime
    ) -> Unwritten | None:
        """Create the Secret if it may be missing; return why that failed."""
        key = (cr.namespace, cr.name)
        is_wanted = key in self._refused or not any(map(roles.runs_router, live.pods)) or is_awaited(live)
        uid, at = self._tried.get(key, ("", now))
        if not is_wanted or (uid == cr.metadata.uid and timedelta(0) <= now - at < _AGAIN):
            return None
        name = contract.admin_secret_name(cr.name)
        manifest = desired.admin_secret(cr, name, self._tokens.of(*key))
        if fault := await writes.tried("Secret", name, self._created(manifest)):
            return fault
        self._tried[key] = cr.metadata.uid, now
        self._refused.discard(key)
        return None

    async def _created(self, manifest: dict[str, Any]) -> None:
        try:
            await self._applier.create(manifest)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise


def is_awaited(live: Snapshot) -> bool:
    """Tell whether a pod cannot start yet, as where the Secret is missing."""
    return any(map(_waits, live.pods))


def seconds_until_tried(live: Snapshot) -> list[float]:
    """Return after how many seconds to look again whether the Secret is missing."""
    return [_AGAIN.total_seconds()] if is_awaited(live) else []


def _waits(pod: Mapping[str, Any]) -> bool:
    if has_ended(pod) or "deletionTimestamp" in pod["metadata"]:
        return False
    is_router = pod["metadata"]["labels"].get(contract.LABEL_ROUTER) == "true"
    reasons = {
        ((container.get("state") or {}).get("waiting") or {}).get("reason")
        for container in ended.containers(pod)
    }
    return _VARIABLE in reasons or (is_router and not reasons.isdisjoint(_VOLUME))
