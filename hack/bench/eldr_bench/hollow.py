"""Pods without programs: what kubelets and routers would tell of them, for many deployments at a time."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import uvicorn

from eldr import contract
from eldr_kube.cluster import Cluster

Object = dict[str, Any]

_STATE: Object = {
    "v": contract.STATE_VERSION,
    "router": "0a1b2c3d",
    "epoch": 0,
    "policy": contract.POLICY_DEFAULT,
    "ready": True,
    "draining": False,
    "active": None,
    "staged": None,
    "refused": [],
    "samples": 0,
    "prefill": [],
    "decode": [],
    "step_time": None,
    "traffic": None,
    "saving": None,
    "counters": {},
}
"""Of a router without centroids and without traffic."""


class Hollow:
    """Makes pods run and be ready, once :meth:`release` was called; each router answers at an address of its own.

    Parameters
    ----------
    routers : int
        How many there will be at most.
    """

    def __init__(self, cluster: Cluster, routers: int) -> None:
        self._api = httpx.Client(
            base_url=cluster.server,
            headers={"Authorization": f"Bearer {cluster.token}"},
            verify=str(cluster.ca),
        )
        self._free = iter(_addresses(routers))
        self._released = threading.Event()
        sockets = [_listening(address) for address in _addresses(routers)]
        # connections stay as long as a router's do
        config = uvicorn.Config(
            _answer, log_config=None, lifespan="off", access_log=False, timeout_keep_alive=75
        )
        self._server = uvicorn.Server(config)
        self._threads = [
            threading.Thread(target=self._server.run, args=(sockets,), daemon=True),
            threading.Thread(target=self._run, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def release(self) -> None:
        """Let pods run from now on, those that wait and those that come."""
        self._released.set()

    def close(self) -> None:
        """End the routers."""
        self._server.should_exit = True
        self._threads[0].join()

    def _run(self) -> None:
        self._released.wait()
        query = {"watch": "1", "resourceVersion": "0", "labelSelector": contract.LABEL_ROLE}
        started = set[str]()
        try:
            while not self._server.should_exit:  # the API server ends the watch of a reader that is slow
                with self._api.stream("GET", "/api/v1/pods", params=query, timeout=None) as events:
                    for line in events.iter_lines():
                        event = json.loads(line)
                        uid = event["object"]["metadata"].get("uid")
                        if event["type"] in {"ADDED", "MODIFIED"} and uid not in started:
                            self._start(event["object"])
                            started.add(uid)
        except httpx.HTTPError:  # the control plane ends with the measurement
            if not self._server.should_exit:
                raise

    def _start(self, pod: Object) -> None:
        metadata = pod["metadata"]
        is_router = metadata["labels"].get(contract.LABEL_ROUTER) == "true"
        address = next(self._free) if is_router else "127.0.0.1"
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": ready,
            "containerStatuses": _running(pod, "containers"),
            "initContainerStatuses": _running(pod, "initContainers"),
        }
        self._api.patch(
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status",
            content=orjson.dumps({"status": status}),
            headers={"Content-Type": "application/strategic-merge-patch+json"},
        ).raise_for_status()


def _running(pod: Object, key: str) -> list[Object]:
    state = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
    told = {"imageID": "", "ready": True, "started": True, "restartCount": 0, "state": state}
    return [{"name": one["name"], "image": one["image"], **told} for one in pod["spec"].get(key, ())]


async def _answer(scope: Object, _: Any, send: Any) -> None:
    is_known = scope["type"] == "http" and scope["path"] == contract.PATH_STATE
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200 if is_known else 404, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(_STATE) if is_known else b"{}"})


def _addresses(count: int) -> Iterator[str]:
    """Yield loopback addresses."""
    return (f"127.7.{1 + number // 250}.{1 + number % 250}" for number in range(count))


def _listening(address: str) -> socket.socket:
    made = socket.create_server((address, contract.PORT_ADMIN))
    made.setblocking(False)
    return made
