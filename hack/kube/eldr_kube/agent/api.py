"""The few calls that an agent makes to the API server."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import yaml

Object = dict[str, Any]
_MERGE = "application/merge-patch+json"
_log = logging.getLogger(__name__)


class ApiError(Exception):
    """The API server refused a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Client of the API server with the agent's own rights.

    Parameters
    ----------
    kubeconfig : Path
        A kubeconfig with a token and a certificate authority.
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        target = config["clusters"][0]["cluster"]
        self.server: str = target["server"]
        self.ca = Path(target["certificate-authority"])
        headers = {"authorization": f"Bearer {config['users'][0]['user']['token']}"}
        context = ssl.create_default_context(cafile=str(self.ca))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        timeout = httpx.Timeout(15.0, pool=None)
        self._client = httpx.AsyncClient(
            base_url=self.server, headers=headers, verify=context, limits=limits, timeout=timeout
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def call(self, method: str, path: str, body: Object | None = None, **params: str) -> Object:
        """Call the API server.

        Raises
        ------
        ApiError
            If it answers with an error.
        """
        kind = _MERGE if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        headers = {"content-type": kind}
        response = await self._client.request(method, path, content=content, headers=headers, params=params)
        value: Object = response.json()
        if response.is_error:
            raise ApiError(response.status_code, str(value.get("message", value)))
        return value

    async def follow(self, path: str, **params: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield ``(type, object)`` for every change, beginning with ``("ADDED", ...)`` for what exists.

        Lists again after every interruption, so that nothing is missed; objects may therefore repeat.
        """
        while True:
            try:
                listed = await self.call("GET", path, None, **params)
                for item in listed["items"]:
                    yield "ADDED", item
                version = listed["metadata"]["resourceVersion"]
                async for kind, item in self._watch(path, version, params):
                    yield kind, item
            except (httpx.HTTPError, ApiError) as error:
                _log.debug("watch of %s: %s", path, error)
                await asyncio.sleep(0.5)

    async def _watch(
        self, path: str, version: str, params: dict[str, str]
    ) -> AsyncIterator[tuple[str, Object]]:
        query = {**params, "watch": "1", "resourceVersion": version, "timeoutSeconds": "300"}
        timeout = httpx.Timeout(15.0, read=None, pool=None)
        async with self._client.stream("GET", path, params=query, timeout=timeout) as response:
            if response.is_error:
                raise ApiError(response.status_code, "watch")
            async for line in response.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event["type"], event["object"]
