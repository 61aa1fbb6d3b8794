"""A namespace of a real cluster, as tests use it: apply, look, wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import yaml

from eldr_kube.cluster import Cluster
from tests.support.processes import wait_for
from tests.support.threads import ApiClients

Object = dict[str, Any]
SECONDS = 60.0


class Space:
    """One namespace; polls through HTTP, because a kubectl process per look would be the slowest part of a test."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self._http = ApiClients(cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def apply(self, *manifests: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments, stdin=stdin)

    def get(self, path: str) -> Object | None:
        response = self._http().get(path)
        if response.status_code == 404:
            return None
        response.raise_for_status()
        return response.json()

    def pod(self, name: str) -> Object | None:
        return self.get(f"/api/v1/namespaces/{self.name}/pods/{name}")

    def pods(self, selector: str = "") -> list[Object]:
        found = self.get(f"/api/v1/namespaces/{self.name}/pods?labelSelector={selector}")
        return found["items"] if found else []

    def job(self, name: str) -> Object | None:
        return self.get(f"/apis/batch/v1/namespaces/{self.name}/jobs/{name}")

    def wait_pod(self, name: str, condition: Callable[[Object], object], what: str) -> Object:
        """Wait until a pod exists and meets a condition; the failure shows its last status."""
        last: Object | None = None

        def met() -> object:
            nonlocal last
            last = self.pod(name)
            return last if last is not None and condition(last) else None

        try:
            found = wait_for(met, f"pod {name}: {what}", SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{yaml.safe_dump((last or {}).get('status'))}") from None
        assert isinstance(found, dict)
        return found

    def wait_ready(self, name: str) -> Object:
        return self.wait_pod(name, is_ready, "Ready")

    def wait_gone(self, name: str) -> None:
        wait_for(lambda: self.pod(name) is None, f"pod {name} to be gone", SECONDS)

    def wait_log(self, pod: str, text: str, container: str = "main") -> str:
        """Wait until a container's log holds a text and return the whole log."""
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}/log?container={container}"

        def log() -> str | None:
            response = self._http().get(path)
            return response.text if response.status_code == 200 and text in response.text else None

        return str(wait_for(log, f"{text!r} in the log of {pod}/{container}", SECONDS))


def condition(pod: Object, kind: str) -> Object:
    found = [item for item in pod.get("status", {}).get("conditions", []) if item["type"] == kind]
    return found[0] if found else {}


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def container_status(pod: Object, name: str = "main") -> Object:
    status = pod.get("status", {})
    known = status.get("containerStatuses", []) + status.get("initContainerStatuses", [])
    return next((item for item in known if item["name"] == name), {"state": {}, "restartCount": 0})


def container(script: str, name: str = "main", **more: Any) -> Object:
    """A container that runs a shell script."""
    return {"name": name, "image": "busybox:1", "command": ["sh", "-c", script], **more}


def pod(name: str, *containers: Object, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A bare pod that ends fast when it is deleted."""
    metadata = {"name": name, "labels": labels or {"app": name}}
    body = {"terminationGracePeriodSeconds": 1, **spec, "containers": list(containers)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


# A shell that runs as process 1 of a container ignores SIGTERM unless it traps it, here as in a real container.
STAY = "trap 'exit 0' TERM; while :; do sleep 0.1; done"

_ENGINE = """
import os, signal, sys
from multiprocessing import shared_memory
import eldr_probe
block = shared_memory.SharedMemory(create=True, size=1 << 20)
block.buf[-1] = 7
again = shared_memory.SharedMemory(name=block.name)
print("plugin", eldr_probe.WORD, "shared", again.buf[-1], "blocks", len(os.listdir("/dev/shm")), flush=True)
try:
    open(eldr_probe.__file__, "a")
    print("writable", flush=True)
except OSError:
    print("frozen", flush=True)
again.close()
block.close()
block.unlink()
print("done", flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pause()
"""


def engine_like(name: str) -> Object:
    """A pod built as those of vLLM: an init container brings a package, shared memory is a volume."""
    plugin = {
        "name": "eldr-plugin",
        "image": "busybox:1",
        "command": ["sh", "-c", "echo WORD = 42 > /eldr/plugin/eldr_probe.py"],
        "volumeMounts": [{"name": "plugin", "mountPath": "/eldr/plugin"}],
    }
    main = {
        "name": "main",
        "image": "busybox:1",
        "command": ["python3", "-c", _ENGINE],
        "env": [{"name": "PYTHONPATH", "value": "/eldr/plugin"}],
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "plugin", "mountPath": "/eldr/plugin", "readOnly": True},
        ],
    }
    volumes = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "plugin", "emptyDir": {}},
    ]
    return pod(name, main, initContainers=[plugin], volumes=volumes)
