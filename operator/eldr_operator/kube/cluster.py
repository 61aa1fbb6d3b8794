"""One look at everything that belongs to an EldrDeployment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from eldr import contract
from eldr_operator.errors import ApiError
from eldr_operator.kube import tokens
from eldr_operator.kube.api import Api
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.queue import Key
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.kube.tokens import Tokens
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_CHILDREN = tuple(WATCHED.keys() - {contract.KIND_DEPLOYMENT, contract.KIND_FIT, "Pod"})
_REFUSED_SECONDS = 60.0
"""Between two attempts with another token."""


class Cluster:
    """Looks at deployments.

    Parameters
    ----------
    derived : Tokens
        Of the routers' admin ports.
    """

    def __init__(
        self, api: Api, cache: Cache, derived: Tokens, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._cache = cache
        self._derived = derived
        self._monotonic = monotonic
        self._refused: dict[Key, float] = {}
        self._earlier: dict[Key, str] = {}

    def look(self, cr: EldrDeployment) -> Snapshot:
        """Return what belongs to a deployment."""
        namespace = cr.namespace
        children = {
            (kind, child["metadata"]["name"]): child
            for kind in _CHILDREN
            for child in self._cache.of_deployment(kind, namespace, cr.name)
        }
        pods = self._cache.of_deployment("Pod", namespace, cr.name)
        key = (namespace, cr.name)
        return Snapshot(children, pods, self._earlier.get(key) or self._derived.of(*key))

    async def refused(self, key: Key) -> None:
        """Try another token: routers from before tokens were derived have one that only their Secret holds.

        By default the operator may not read that Secret, and goes on with its own token.
        """
        now = self._monotonic()
        if now - self._refused.get(key, -_REFUSED_SECONDS) < _REFUSED_SECONDS:
            return
        self._refused[key] = now
        if self._earlier.pop(key, None) is not None:
            return
        try:
            secret = await self._api.get("Secret", key[0], contract.admin_secret_name(key[1]))
        except ApiError:
            return
        if token := tokens.read(secret, contract.SECRET_TOKEN_KEY).decode(errors="replace"):
            self._earlier[key] = token

    def forget(self, key: Key) -> None:
        """Drop what is known of a deployment that is gone."""
        self._refused.pop(key, None)
        self._earlier.pop(key, None)
