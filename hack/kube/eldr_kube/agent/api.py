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
_PATCH = "application/strategic-merge-patch+json"
_METADATA = {
    "LIST": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    "WATCH": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
}
_RETRY_SECONDS = 0.2
_RETRY_LIMIT = 5.0
_log = logging.getLogger(__name__)


class ApiError(Exception):
    """The API server refused a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
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
        self.server = httpx.URL(target["server"])
        self.ca = Path(target["certificate-authority"])
        headers = {"authorization": f"Bearer {config['users'][0]['user']['token']}"}
        context = ssl.create_default_context(cafile=str(self.ca))
        # with bounds, httpcore 1.0.9 may close a connection under a request
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        timeout = httpx.Timeout(15.0, pool=None)
        self._client = httpx.AsyncClient(
            base_url=self.server,
            headers=headers,
            verify=context,
            limits=limits,
            timeout=timeout,
            trust_env=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which client libraries in a pod find the API server."""
        port = str(self.server.port)
        return {
            "KUBERNETES_SERVICE_HOST": self.server.host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Call the API server; a PATCH is a strategic merge; ApiError if it answers with an error."""
        headers = {"content-type": _PATCH if method == "PATCH" else "application/json"}
        content = None if body is None else json.dumps(body)
        return _value(await self._client.request(method, path, content=content, headers=headers))

    async def follow(
        self, path: str, *, metadata_only: bool = False, **params: str
    ) -> AsyncIterator[tuple[str, list[Object]]]:
        """Yield ``("SYNC", all objects)``, then ``("ADDED" | "MODIFIED" | "DELETED", [object])`` for every change.

        After an interruption that loses track it yields SYNC again, so nothing is missed.
        """
        delay = _RETRY_SECONDS
        while True:
            try:
                accept = {"accept": _METADATA["LIST"]} if metadata_only else {}
                listed = _value(await self._client.get(path, params=params, headers=accept))
                yield "SYNC", listed["items"] or []
                delay = _RETRY_SECONDS
                version = listed["metadata"]["resourceVersion"]
                while version:
                    resume, version = version, ""
                    async for kind, item in self._watch(path, resume, params, metadata_only=metadata_only):
                        version = item["metadata"]["resourceVersion"]
                        if kind != "BOOKMARK":
                            yield kind, [item]
            except (httpx.HTTPError, ApiError) as error:
                _log.info("watch of %s: %s", path, error or type(error).__name__)
                await asyncio.sleep(delay)
                delay = min(_RETRY_LIMIT, 2 * delay)

    async def _watch(
        self, path: str, version: str, params: dict[str, str], *, metadata_only: bool
    ) -> AsyncIterator[tuple[str, Object]]:
        query = {**params, "watch": "1", "resourceVersion": version, "timeoutSeconds": "300"}
        query["allowWatchBookmarks"] = "true"
        accept = {"accept": _METADATA["WATCH"]} if metadata_only else {}
        timeout = httpx.Timeout(15.0, read=None, pool=None)
        async with self._client.stream(
            "GET", path, params=query, headers=accept, timeout=timeout
        ) as response:
            if response.is_error:
                await response.aread()
                _value(response)
            async for line in response.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event["type"], event["object"]


def _value(response: httpx.Response) -> Object:
    try:
        value: Object = response.json()
    except ValueError:
        value = {"message": response.text}
    if response.is_error:
        raise ApiError(response.status_code, str(value.get("message", value)))
    return value
