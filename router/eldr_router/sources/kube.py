"""The Kubernetes source: pods, the routing ConfigMap, shards.

It needs no more than the router's Role: pods get/list/watch, and get/watch of ConfigMaps by name. An outage of the API
keeps what was read last.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from functools import partial

import orjson
from kubernetes.aio.client import ApiClient

from eldr import centroids
from eldr.admin_tls import server_name
from eldr.contract import (
    ENV_POD_IP,
    LABEL_DEPLOYMENT,
    ROLE_DECODE,
    ROLE_PREFILL,
    ROUTING_KEY,
    SHARD_KEY,
    routing_name,
)
from eldr_router.placement.table import RoutingError, SetRef, parse
from eldr_router.sources.api import Api, ApiError, Object
from eldr_router.sources.follow import Follower, Watch
from eldr_router.sources.pods import engines, peers, secure
from eldr_router.sources.routing import MissingError, Routing


class KubeSource:
    """Follows one EldrDeployment."""

    def __init__(self, client: ApiClient, namespace: str, deployment: str, routing: Routing) -> None:
        self._api = Api(client)
        self._routing = routing
        self._base = f"/api/v1/namespaces/{namespace}"
        self._selector = {"labelSelector": f"{LABEL_DEPLOYMENT}={deployment}"}
        self._config_map = routing_name(deployment)
        self._name = server_name(deployment, namespace)
        self._own_ip = os.environ.get(ENV_POD_IP, "")
        self._pods: dict[str, Object] = {}
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Follow for ever."""
        pods, maps = f"{self._base}/pods", f"{self._base}/configmaps"
        one = {"fieldSelector": f"metadata.name={self._config_map}"}
        async with asyncio.TaskGroup() as group:
            for name, listing, watch, take in (
                ("pods", self._list_pods, self._watch(pods, self._selector), self._take_pod),
                ("routing", self._get_routing, self._watch(maps, one), self._take_routing),
            ):
                follower = Follower(name, listing, watch, take, partial(self._problem, name))
                group.create_task(follower.run())

    def _watch(self, path: str, query: dict[str, str]) -> Watch:
        return lambda version: self._api.watch(path, {**query, "resourceVersion": version})

    def _problem(self, name: str, problem: str | None, is_refused: bool = False) -> None:  # noqa: FBT001, FBT002
        if problem is None:
            self._problems.pop(name, None)
        else:
            self._problems[name] = problem
        self._routing.set_problem("; ".join(self._problems.values()) or None, is_refused=is_refused)

    async def _list_pods(self) -> str:
        listing = await self._api.get(f"{self._base}/pods", self._selector)
        self._pods = {pod["metadata"]["name"]: pod for pod in listing["items"]}
        self._publish()
        return str(listing["metadata"]["resourceVersion"])

    def _take_pod(self, event: Object) -> None:
        pod = event["object"]
        if event["type"] == "DELETED":
            self._pods.pop(pod["metadata"]["name"], None)
        else:
            self._pods[pod["metadata"]["name"]] = pod
        self._publish()

    def _publish(self) -> None:
        specs = engines(self._pods.values())
        self._routing.set_endpoints(ROLE_PREFILL, [spec for spec in specs if spec.role == ROLE_PREFILL])
        self._routing.set_endpoints(ROLE_DECODE, [spec for spec in specs if spec.role == ROLE_DECODE])
        pods = self._pods.values()
        self._routing.set_peers(peers(pods, self._own_ip), secure(pods, self._name))

    async def _get_routing(self) -> str:
        config_map = await self._api.get(f"{self._base}/configmaps/{self._config_map}")
        self._read_routing(config_map)
        return str(config_map["metadata"]["resourceVersion"])

    def _take_routing(self, event: Object) -> None:
        if event["type"] == "DELETED":
            self._problem("table", f"ConfigMap {self._config_map} is gone; its last contents stay in effect")
        else:
            self._read_routing(event["object"])

    def _read_routing(self, config_map: Object) -> None:
        try:
            document = parse(orjson.loads((config_map.get("data") or {}).get(ROUTING_KEY, "")))
        except (RoutingError, orjson.JSONDecodeError) as error:
            self._problem(
                "table",
                f"ConfigMap {self._config_map}, {ROUTING_KEY}: {error}; the last good one stays in effect",
            )
            return
        self._problem("table", None)
        self._routing.set_document(document, self._fetch)

    async def _fetch(self, ref: SetRef) -> bytes:
        shards: list[bytes] = []
        for shard in ref.shards:
            try:
                config_map = await self._api.get(f"{self._base}/configmaps/{shard.name}")
                shards.append(base64.b64decode(config_map["binaryData"][SHARD_KEY], validate=True))
            except ApiError as error:  # 403 too: a fresh Role takes a moment
                raise MissingError(f"shard {shard.name}: {error}") from None
            except (KeyError, TypeError, binascii.Error):
                raise centroids.CentroidsError(
                    f"shard {shard.name}: no {SHARD_KEY} under binaryData"
                ) from None
        return centroids.join(shards, [shard.sha256 for shard in ref.shards])
