"""The kubernetes source against a real API server, with no more rights than the router's own Role.

Nothing runs the pods here: the test writes their status as a kubelet would.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from kubernetes.aio.client import ApiClient, Configuration

from eldr import centroids, contract
from eldr.clients import UNBOUNDED
from eldr_kube.cluster import Cluster
from eldr_router.app import App
from eldr_router.sources.api import Api, ApiError
from tests.fakes.engines import FakeEngine
from tests.router.conftest import until
from tests.router.test_kube_faults import follower, names
from tests.router.test_routing import make_set, signature

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

NAME = "x"
SHARDS = ("f-1", "g-1")


class Space:
    """One namespace, driven as administrator and kubelet."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self.cluster.kubectl, "-n", self.namespace, *arguments, stdin=stdin)

    async def apply(self, *objects: dict) -> None:
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(listing))

    async def pod(self, name: str, role: str, address: str, index: int | None = None) -> None:
        labels = {contract.LABEL_DEPLOYMENT: NAME, contract.LABEL_ROLE: role}
        if index is not None:
            labels[contract.LABEL_STATEFULSET_INDEX] = str(index)
        container = {"name": contract.CONTAINER_ENGINE, "image": "x"}
        spec = {"containers": [container], "automountServiceAccountToken": False, "nodeName": "elsewhere"}
        await self.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
        )
        await self.status(name, address, ready=True)

    async def status(self, name: str, address: str, *, ready: bool) -> None:
        state = {"name": "engine", "ready": ready, "image": "x", "imageID": "x", "restartCount": 0}
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": [{**state, "state": {"running": {}}}],
        }
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        await self.kubectl("patch", "pod", name, *patch)

    async def routing(self, **fields: object) -> None:
        document = {"version": 1, "model": "m", "epoch": 0, "active": None, "staged": None, **fields}
        data = {contract.ROUTING_KEY: json.dumps(document)}
        await self.apply(config_map(contract.routing_name(NAME), data=data))

    async def shard(self, name: str, data: bytes) -> dict:
        await self.apply(config_map(name, binaryData={contract.SHARD_KEY: base64.b64encode(data).decode()}))
        shards = [{"name": name, "sha256": hashlib.sha256(data).hexdigest()}]
        return {"fit": name[0], "digest": centroids.digest(data), "k": 2, "shards": shards}

    async def role(self, *shards: str) -> None:
        """The Role that the operator gives to routers."""
        named = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "watch"]}
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            named | {"resourceNames": [contract.routing_name(NAME), *shards]},
        ]
        group = "rbac.authorization.k8s.io"
        await self.apply(
            {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "router"}, "rules": rules}
        )

    async def client(self) -> ApiClient:
        """Return a client with the router's rights only."""
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": "router", "namespace": self.namespace}
        await self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "router"}},
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "router"},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "router"},
                "subjects": [subject],
            },
        )
        configuration = Configuration(host=self.cluster.server)
        configuration.ssl_ca_cert = str(self.cluster.ca)
        token = (await self.kubectl("create", "token", "router")).strip()
        configuration.api_key["BearerToken"] = f"bearer {token}"
        return ApiClient(configuration)


def config_map(name: str, **contents: object) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **contents}


@pytest.fixture
async def space(api_server: Cluster, bare_namespace: str) -> Space:
    opened = Space(api_server, bare_namespace)
    await opened.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")  # pods need it
    return opened


@contextlib.asynccontextmanager
async def following(space: Space, tmp_path) -> AsyncIterator[App]:
    async with follower(await space.client(), space.namespace, tmp_path) as app:
        yield app
    await asyncio.sleep(0.1)  # aiohttp closes its TLS connections in the loop's next turns


async def test_pods_and_table_are_followed_with_the_routers_role_only(space, tmp_path):
    async with following(space, tmp_path) as app:
        await until(lambda: "403" in (app.routing.problem or ""), "the missing Role to be told")
        await space.role(*SHARDS)
        await until(
            lambda: "403" not in (app.routing.problem or ""), "the Role to be used as soon as it exists"
        )
        assert "404" in app.routing.problem, "no table yet"
        await space.pod("x-decode-1", "decode", "127.30.0.2", 1)
        await space.pod("x-decode-0", "decode", "127.30.0.1", 0)
        await space.pod("x-prefill-a", "prefill", "127.30.0.3")
        await until(lambda: names(app) == ["x-decode-0", "x-decode-1"], "the decode pods")
        await until(lambda: names(app, "prefill") == ["x-prefill-a"], "the prefill pod")
        assert [e.spec.slot for e in app.services.registry.endpoints("decode")] == [0, 1]
        await space.routing(epoch=1, tau=0.25)
        await until(lambda: app.services.table.epoch == 1, "the table")
        await until(lambda: app.routing.problem is None, "the watches to have worked for a while")
        assert app.is_ready()

        first, second = (centroids.dump(make_set(seed=seed)) for seed in (1, 2))
        active, staged = await space.shard("f-1", first), await space.shard("g-1", second)
        await space.routing(epoch=2, active=active)
        await until(lambda: app.services.table.active is not None, "the active set")
        assert app.services.table.active.fit == "f"
        await space.routing(epoch=2, active=active, staged=staged)
        await until(lambda: app.routing.staged is not None, "the staged set")
        await space.routing(epoch=3, active=staged)
        await until(lambda: app.services.table.epoch == 3, "the switch")
        assert app.services.table.active.fit == "g"

        await space.kubectl(
            "patch", "configmap", contract.routing_name(NAME), "-p", '{"data":{"routing.json":"{"}}'
        )
        await until(lambda: app.routing.problem, "the broken table to be told")
        assert app.services.table.epoch == 3
        await space.routing(epoch=4, active=staged)
        await until(lambda: app.services.table.epoch == 4, "the next good table")
        assert app.routing.problem is None

        await space.status("x-decode-1", "127.30.0.2", ready=False)
        await until(lambda: names(app) == ["x-decode-0"], "an engine that is not ready to be left out")
        await space.status("x-decode-1", "127.30.0.2", ready=True)
        await until(lambda: len(names(app)) == 2, "it to come back")
        await space.kubectl(
            "delete", "pod", "x-decode-1", "--wait=false"
        )  # no kubelet: it stays, terminating
        await until(lambda: names(app) == ["x-decode-0"], "a terminating pod to be left out")


async def test_a_shard_out_of_reach_is_reported_in_the_end(space, tmp_path, monkeypatch):
    from eldr_router.sources import routing

    monkeypatch.setattr(routing, "_MISSING_SECONDS", 0.5)
    await space.role()
    good = await space.shard("f-1", centroids.dump(make_set()))
    await space.routing(epoch=1, active=good)
    async with following(space, tmp_path) as app:
        await until(lambda: app.routing.refused, "the refusal")
        assert "403" in app.routing.refused[0][1]
        await space.role("f-1")
        await until(lambda: app.services.table.active is not None, "the shard, once the Role allows it")
        assert not app.routing.refused


async def test_requests_are_served_through_pods(space, tmp_path):
    await space.role(*SHARDS)
    engines = [
        FakeEngine("prefill", "x-prefill-a", port=contract.PORT_ENGINE, host="127.30.1.1"),
        FakeEngine("decode", "x-decode-0", port=contract.PORT_ENGINE, host="127.30.1.2"),
        FakeEngine("decode", "x-decode-1", port=contract.PORT_ENGINE, host="127.30.1.3"),
    ]
    try:
        for index, engine in enumerate(engines):
            await engine.start()
            await space.pod(engine.name, engine.role, engine.host, index - 1 if index else None)
        active = await space.shard("f-1", centroids.dump(make_set()))
        await space.routing(epoch=1, active=active)
        async with (
            following(space, tmp_path) as app,
            httpx.AsyncClient(timeout=120, limits=UNBOUNDED) as client,
        ):
            await until(lambda: app.routing.settled and len(names(app)) == 2, "the router to be settled")
            host, port = app.addresses[0]
            for values, name in (
                ((9, 0, 0, 0, 0, 0, 0, 0), "x-decode-0"),
                ((0, 9, 0, 0, 0, 0, 0, 0), "x-decode-1"),
            ):
                engines[0].eldr = signature(*values)
                body = {"model": "m", "prompt": "x"}
                got = await client.post(f"http://{host}:{port}/v1/completions", json=body)
                assert (got.status_code, got.headers["x-eldr-decode"]) == (200, name)
    finally:
        for engine in engines:
            await engine.refuse()


async def test_the_role_is_really_narrow(space):
    """Otherwise the tests above would prove nothing."""
    await space.role("f-1")
    client = await space.client()
    api, base = Api(client), f"/api/v1/namespaces/{space.namespace}/configmaps"
    try:
        for path, query in (
            (base, {}),
            (f"{base}/other", {}),
            (base, {"fieldSelector": "metadata.name=other"}),
        ):
            with pytest.raises(ApiError) as error:
                await api.get(path, query)
            assert error.value.status == 403
    finally:
        await client.close()
        await asyncio.sleep(0.1)
