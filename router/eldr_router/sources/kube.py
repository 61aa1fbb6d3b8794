"""The Kubernetes source: pods by label, the routing ConfigMap by name, shards on demand.

It needs no more than the router's Role: pods get/list/watch, and get/watch of ConfigMaps by name. An outage of the API
keeps what was read last.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import orjson
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config

from eldr import centroids
from eldr.contract import (
    ENV_POD_IP,
    LABEL_DEPLOYMENT,
    ROLE_DECODE,
    ROLE_PREFILL,
    ROUTING_KEY,
    SHARD_KEY,
    routing_name,
)
from eldr_router.plan.table import RoutingError, SetRef, parse
from eldr_router.sources.pods import engines, peers
from eldr_router.state.control import Control, MissingError

log = logging.getLogger(__name__)

_WATCH_SECONDS = 60
_REQUEST_SECONDS = 10
_BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


async def connect() -> ApiClient:
    """Return a client with the pod's own credentials, or those of the kubeconfig outside a cluster."""
    configuration = Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        load_incluster_config(client_configuration=configuration)
    else:
        await load_kube_config(client_configuration=configuration)
    return ApiClient(configuration)


class Api:
    """GET and watch as plain JSON.

    Parameters
    ----------
    client : kubernetes.aio.client.ApiClient
        Brings address, certificates and tokens.
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
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the API server cannot be reached: {error or type(error).__name__}") from None
        if response.status != 200:
            try:
                text = await response.text()
            except (aiohttp.ClientError, TimeoutError):
                text = ""
            raise ApiError(response.status, _message(text))
        return response

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Return one object or list.

        Raises
        ------
        ApiError
            With the status, 0 if there was none.
        """
        response = await self._request(path, query or {}, _REQUEST_SECONDS)
        try:
            fields: Object = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(0, f"a broken answer: {error}") from None
        return fields

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
        """Yield events until the server ends the watch.

        Raises
        ------
        ApiError
            Also for an ERROR event, with its code.
        """
        query = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        response = await self._request(path, query, _WATCH_SECONDS + _REQUEST_SECONDS)
        buffer = b""
        try:
            async for data in response.content.iter_any():
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(int(status.get("code", 0)), str(status.get("message")))
                    yield event
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            raise ApiError(0, f"the watch broke: {error or type(error).__name__}") from None
        finally:
            response.close()


def _message(text: str) -> str:
    try:
        return str(orjson.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


class KubeSource:
    """Follows one EldrDeployment.

    Parameters
    ----------
    client : ApiClient
    namespace, deployment : str
    control : Control
    """

    def __init__(self, client: ApiClient, namespace: str, deployment: str, control: Control) -> None:
        self._api = Api(client)
        self._control = control
        self._base = f"/api/v1/namespaces/{namespace}"
        self._deployment = deployment
        self._own_ip = os.environ.get(ENV_POD_IP, "")
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Follow for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow("pods", self._pods))
            group.create_task(self._follow("routing", self._routing))

    async def _follow(self, name: str, once: Any) -> None:
        failures = 0
        while True:
            try:
                async for _ in once():
                    failures = 0
                    self._problem(name, None)
            except ApiError as error:
                if error.status != 410:  # the watch is too old: list again
                    self._problem(name, f"{name}: {error}")
                await asyncio.sleep(_BACKOFF[min(failures, len(_BACKOFF) - 1)])
                failures += 1

    def _problem(self, name: str, problem: str | None) -> None:
        if problem is None:
            self._problems.pop(name, None)
        else:
            self._problems[name] = problem
        self._control.set_problem("; ".join(self._problems.values()) or None)

    async def _pods(self) -> AsyncIterator[None]:
        path, query = f"{self._base}/pods", {"labelSelector": f"{LABEL_DEPLOYMENT}={self._deployment}"}
        listing = await self._api.get(path, query)
        pods = {pod["metadata"]["name"]: pod for pod in listing["items"]}
        version = listing["metadata"]["resourceVersion"]
        while True:
            self._publish(pods)
            yield
            async for event in self._api.watch(path, {**query, "resourceVersion": version}):
                pod = event["object"]
                version = pod["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    pods.pop(pod["metadata"]["name"], None)
                elif event["type"] != "BOOKMARK":
                    pods[pod["metadata"]["name"]] = pod
                self._publish(pods)

    def _publish(self, pods: Mapping[str, Object]) -> None:
        found = engines(pods.values())
        self._control.set_endpoints(ROLE_PREFILL, [spec for spec in found if spec.role == ROLE_PREFILL])
        self._control.set_endpoints(ROLE_DECODE, [spec for spec in found if spec.role == ROLE_DECODE])
        self._control.set_peers(peers(pods.values(), self._own_ip))

    async def _routing(self) -> AsyncIterator[None]:
        name = routing_name(self._deployment)
        path = f"{self._base}/configmaps"
        config_map = await self._api.get(f"{path}/{name}")
        query = {"fieldSelector": f"metadata.name={name}"}
        version = config_map["metadata"]["resourceVersion"]
        self._take(config_map)
        while True:
            yield
            async for event in self._api.watch(path, {**query, "resourceVersion": version}):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._take(event["object"])
                elif event["type"] == "DELETED":
                    self._problem("table", f"ConfigMap {name} is gone; its last contents stay in effect")

    def _take(self, config_map: Object) -> None:
        try:
            intent = parse(orjson.loads((config_map.get("data") or {}).get(ROUTING_KEY, "")))
        except (RoutingError, orjson.JSONDecodeError) as error:
            name = config_map["metadata"]["name"]
            self._problem(
                "table", f"ConfigMap {name}, {ROUTING_KEY}: {error}; the last good one stays in effect"
            )
            return
        self._problem("table", None)
        self._control.set_intent(intent, self._fetch)

    async def _fetch(self, ref: SetRef) -> bytes:
        shards: list[bytes] = []
        for name, _ in ref.shards:
            try:
                config_map = await self._api.get(f"{self._base}/configmaps/{name}")
                shards.append(base64.b64decode(config_map["binaryData"][SHARD_KEY], validate=True))
            except ApiError as error:  # 403 too: a fresh Role takes a moment
                raise MissingError(f"shard {name}: {error}") from None
            except (KeyError, TypeError, binascii.Error):
                raise centroids.CentroidsError(f"shard {name}: no {SHARD_KEY} under binaryData") from None
        return centroids.join(shards, [sha256 for _, sha256 in ref.shards])
