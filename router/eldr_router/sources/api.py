"""The Kubernetes API as plain JSON, with one kind of error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import orjson
from kubernetes.aio.client import ApiClient

from eldr import async_credentials
from eldr.kubeconfig_files import CredentialsError

_WATCH_SECONDS = 60
_REQUEST_SECONDS = 10
_MOST_ASKED_SECONDS = 120.0

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request, or could not be reached (status 0).

    Parameters
    ----------
    status : int
        HTTP status, or the code of an ERROR event.
    message : str
    retry_after : float
        Seconds that the server asks to be left alone.
    """

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.retry_after = retry_after


async def connect() -> ApiClient:
    """Return a client with the pod's credentials, or the kubeconfig's."""
    return ApiClient(await async_credentials.load())


class Api:
    """GET and watch.

    Parameters
    ----------
    client : kubernetes.aio.client.ApiClient
        Brings address, certificates and tokens; in a cluster it reads the token's file anew every minute.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def _request(self, path: str, query: Mapping[str, str], seconds: float) -> Any:
        try:
            request = await self._client.param_serialize(
                "GET",
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            response = (await self._client.call_api(*request, _request_timeout=seconds)).response
        except CredentialsError as error:
            raise ApiError(0, f"no credentials for the API server: {error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the API server cannot be reached: {error or type(error).__name__}") from None
        if response.status != 200:
            try:
                text = await response.text()
            except (aiohttp.ClientError, TimeoutError):
                text = ""
            asked = _seconds(response.headers.get("retry-after", ""))
            raise ApiError(response.status, _message(text), asked)
        return response

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Return one object or list; ApiError with the status, or 0."""
        response = await self._request(path, query or {}, _REQUEST_SECONDS)
        try:
            fields: Object = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(0, f"a broken answer: {error}") from None
        return fields

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[Object]]:
        """Open a watch: the context holds its events, until the server ends it.

        Raises
        ------
        ApiError
            Also for an ERROR event, with its code.
        """
        query = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        response = await self._request(path, query, _WATCH_SECONDS + _REQUEST_SECONDS)
        try:
            async with aclosing(_events(response)) as events:
                yield events
        finally:
            response.close()


async def _events(response: Any) -> AsyncGenerator[Object, None]:
    buffer = b""
    try:
        async for data in response.content.iter_any():
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    asked = _seconds((status.get("details") or {}).get("retryAfterSeconds", ""))
                    raise ApiError(int(status.get("code", 0)), str(status.get("message")), asked)
                yield event
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        raise ApiError(0, f"the watch broke: {error or type(error).__name__}") from None


def _seconds(value: object) -> float:
    """Return the seconds of a Retry-After header; API servers send whole ones, never dates."""
    text = str(value).strip()
    return min(float(text), _MOST_ASKED_SECONDS) if text.isdecimal() else 0.0


def _message(text: str) -> str:
    try:
        return str(orjson.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
