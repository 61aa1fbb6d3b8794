"""The same address and credentials for clients that use asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from kubernetes.aio.client import Configuration

from eldr import credentials

_SAME = ("host", "ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy")


async def load() -> Any:
    """Return the configuration of :func:`eldr.credentials.load`, for a client of ``kubernetes.aio``; errors as of that."""
    return adapted((await asyncio.to_thread(credentials.load)).configuration)


def adapted(configuration: credentials.Configuration) -> Any:
    """Return the same configuration for ``kubernetes.aio``.

    It checks certificates as kubectl does: Python 3.13 by itself refuses those without an Authority Key Identifier, which many clusters
    have. It never looks at the environment again.
    """
    made = Configuration()
    for name in _SAME:
        setattr(made, name, getattr(configuration, name))

    def refresh(into: Any) -> None:
        token = configuration.get_api_key_with_prefix("BearerToken")
        if token is not None:
            into.api_key["BearerToken"] = token

    refresh(made)
    made.refresh_api_key_hook = refresh
    made.disable_strict_ssl_verification = True
    # aiohttp would ask the environment, and look for a netrc, in a thread and with every request
    made.client_session_kwargs = {"trust_env": False}
    return made
