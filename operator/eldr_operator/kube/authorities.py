"""Whom to trust at routers' admin ports: ConfigMaps say so, as the operator reads no Secret of others."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

from eldr import admin_tls
from eldr_operator.errors import ApiError, ApiUnavailableError
from eldr_operator.kube.api import Api

_AGAIN_SECONDS = 30.0
"""Between two looks at a ConfigMap: certificates are renewed long before they expire."""
_FORGOTTEN_SECONDS = 600.0


class Trust(NamedTuple):
    """What proves the admin ports of a deployment.

    Parameters
    ----------
    context : ssl.SSLContext or None
        None if there is none, and ``problem`` says why.
    name : str
        That certificates are for.
    """

    context: ssl.SSLContext | None
    name: str
    problem: str = ""


class _Known(NamedTuple):
    at: float
    pem: str
    context: ssl.SSLContext | None
    problem: str


class Authorities:
    """Reads them, and again when they may have changed."""

    def __init__(self, api: Api, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._monotonic = monotonic
        self._known: dict[tuple[str, str], _Known] = {}

    async def of(self, namespace: str, deployment: str, config_map: str) -> Trust:
        """Return whom to trust at the admin ports of a deployment.

        Parameters
        ----------
        config_map : str
            Its name; empty: nobody says, so everybody is trusted.
        """
        name = admin_tls.server_name(deployment, namespace)
        if not config_map:
            return Trust(admin_tls.unverified(), name)
        now, key = self._monotonic(), (namespace, config_map)
        known = self._known.get(key)
        if known is None or now - known.at >= _AGAIN_SECONDS:
            known = await self._read(namespace, config_map, known, now)
            self._known = {
                key: each for key, each in self._known.items() if now - each.at < _FORGOTTEN_SECONDS
            }
            self._known[key] = known
        return Trust(known.context, name, known.problem)

    async def _read(self, namespace: str, name: str, before: _Known | None, now: float) -> _Known:
        where = f"ConfigMap {name}"
        try:
            config_map = await self._api.get("ConfigMap", namespace, name)
        except (ApiError, ApiUnavailableError) as error:
            if before is not None and before.context is not None:
                return before._replace(at=now)
            status = f"status {error.status}" if isinstance(error, ApiError) else "no answer"
            return _Known(now, "", None, f"{where} cannot be read ({status})")
        if config_map is None:
            return _Known(now, "", None, f"{where} does not exist")
        pem = str((config_map.get("data") or {}).get(admin_tls.AUTHORITY_KEY) or "")
        if before is not None and before.context is not None and before.pem == pem:
            return before._replace(at=now)
        try:
            return _Known(now, pem, admin_tls.verifying(pem), "")
        except admin_tls.AuthorityError as error:
            return _Known(now, "", None, f"{where}, {admin_tls.AUTHORITY_KEY}: {error}")
