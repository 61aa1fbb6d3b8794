"""Plays the parts that a test has no kubelet for: pods become ready, Jobs report, routers answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from eldr import contract
from eldr.cli import main
from eldr_operator import clock
from tests.operator.routers import PretendRouter, RouterState
from tests.support.kube import Kube, Object, Refused

KIND, FIT, SCALER = contract.KIND_DEPLOYMENT, contract.KIND_FIT, contract.KIND_SCALER


def simulated(**spec: Any) -> Object:
    """Return the spec of a small EldrDeployment."""
    base: Object = {
        "model": {"uri": "org/tiny"},
        "engine": {"type": "Simulator"},
        "prefill": {"gpus": 0},
        "decode": {"gpus": 0},
        "centroids": {"ackTimeoutSeconds": 60},
    }
    for key, value in spec.items():
        base[key] = {**base.get(key, {}), **value}
    return base


class World:
    """One EldrDeployment in a namespace of its own."""

    router_kind: type[RouterState] = PretendRouter

    def __init__(self, kube: Kube, name: str = "x") -> None:
        self.kube = kube
        self.name = name
        self.routers: dict[str, RouterState] = {}

    def close(self) -> None:
        if self.kube.find(KIND, self.name):
            self.kube.delete(KIND, self.name)
        for router in self.routers.values():
            router.close()

    def deploy(self, **spec: Any) -> Object:
        return self.kube.create(KIND, {"name": self.name}, spec=simulated(**spec))

    def patch(self, **spec: Any) -> Object:
        return self.kube.merge(KIND, self.name, {"spec": spec})

    def eldr(self, command: str, *arguments: str, kubeconfig: Path | None = None) -> Result:
        """Run a command of ``eldr`` in the deployment's namespace."""
        where = ["--kubeconfig", str(kubeconfig or self.kube.cluster.kubeconfig), "-n", self.kube.namespace]
        return CliRunner().invoke(main, [command, *where, *arguments])

    @property
    def status(self) -> Object:
        return self.kube.get(KIND, self.name).get("status", {})

    @property
    def routing(self) -> Object:
        data = self.kube.get("ConfigMap", contract.routing_name(self.name))["data"]
        return json.loads(data[contract.ROUTING_KEY])

    @property
    def router(self) -> Any:
        """Return the only router."""
        (only,) = self.routers.values()
        return only

    def until(self, holds: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        """Wait for what follows; a failure shows the status."""
        return self.kube.until(holds, what, seconds, lambda: self.status)

    def until_current(self) -> None:
        """Wait until the status is of what the spec says now."""

        def is_current() -> bool:
            found = self.kube.get(KIND, self.name)
            return found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]

        self.until(is_current, "a current status")

    def workload(self, role: str) -> Object:
        kind = "StatefulSet" if role == contract.ROLE_DECODE else "Deployment"
        return self.kube.get(kind, f"{self.name}-{role}")

    def template(self, role: str) -> Object:
        return self.workload(role)["spec"]["template"]

    def condition(self, type_: str, **wanted: str) -> Object:
        return self.kube.until_condition(KIND, self.name, type_, **wanted)

    def until_fit(self, name: str, **wanted: Any) -> Object:
        """Wait until the condition Succeeded of a fit has the wanted fields, and return it."""
        return self.kube.until_condition(FIT, name, "Succeeded", **wanted)

    def run_pods(self) -> None:
        """Make every pod of the deployment run and be ready."""
        for pod in self.kube.list("Pod", f"{contract.LABEL_DEPLOYMENT}={self.name},{contract.LABEL_ROLE}"):
            if pod["status"].get("phase") != "Running" and "deletionTimestamp" not in pod["metadata"]:
                self._run(pod)

    def make_ready(self, seconds: float = 90) -> Object:
        """Play the kubelet until the operator says Ready for what the spec wants now."""

        def is_ready() -> Object | None:
            self.run_pods()
            deployment = self.kube.get(KIND, self.name)
            found = self.kube.condition(KIND, self.name, "Ready")
            current = found.get("observedGeneration") == deployment["metadata"]["generation"]
            return found if current and found["status"] == "True" else None

        return self.kube.until(is_ready, "Ready", seconds, lambda: (self._pods(), self.status))

    def _pods(self) -> list[Object]:
        """Return what the pods of the deployment are, for a failure's message."""
        return [
            {
                "name": pod["metadata"]["name"],
                "owner": [owner["uid"] for owner in pod["metadata"].get("ownerReferences", [])],
                "labels": pod["metadata"]["labels"],
                "deleted": pod["metadata"].get("deletionTimestamp"),
                "phase": pod["status"].get("phase"),
                "conditions": [
                    (each["type"], each["status"]) for each in pod["status"].get("conditions", [])
                ],
            }
            for pod in self.kube.list("Pod", f"{contract.LABEL_DEPLOYMENT}={self.name}")
        ]

    def _wait_for_volume(self, pod: Object) -> None:
        """Say what a kubelet says of a container that mounts a Secret which does not exist."""
        reason = {"reason": "ContainerCreating"}
        (container,) = pod["spec"]["containers"]
        status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        waiting = [status | {"ready": False, "state": {"waiting": reason}}]
        self._tell(pod["metadata"]["name"], {"containerStatuses": waiting})

    def _tell(self, name: str, status: Object) -> None:
        try:
            self.kube.strategic("Pod", name, {"status": status}, "status")
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:  # a rollout may have deleted it since it was listed
                raise

    def _run(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        address = "127.0.0.1"
        if pod["metadata"]["labels"].get(contract.LABEL_ROUTER) == "true":
            secret = contract.admin_secret_name(self.name)
            if not self.kube.find("Secret", secret):
                self._wait_for_volume(pod)
                return
            router = self.routers.get(name) or self.router_kind(self.kube, self.name)
            self.routers[name] = router
            address = router.address
        started = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}

        def containers(key: str) -> list[Object]:
            return [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": started,
                }
                for container in pod["spec"].get(key, [])
            ]

        since = clock.stamp(self.kube.now())
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": since}
            for kind in ("PodScheduled", "Ready", "ContainersReady")
        ]
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": conditions,
            "containerStatuses": containers("containers"),
            "initContainerStatuses": containers("initContainers"),
        }
        self._tell(name, status)

    def crash(self, pod: Object) -> None:
        """End an engine that is ready, and start one that has ended."""
        status = pod["status"]
        (engine,) = status["containerStatuses"]
        is_up = not engine["ready"]
        now = clock.stamp(self.kube.now())
        ready = {"type": "Ready", "status": str(is_up), "lastTransitionTime": now}
        others = [each for each in status["conditions"] if each["type"] != "Ready"]
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "CUDA error: unhandled"}}
        engine = {**engine, "ready": is_up, "restartCount": engine["restartCount"] + (not is_up)}
        engine["lastState"] = ended
        self._tell(pod["metadata"]["name"], {"conditions": [*others, ready], "containerStatuses": [engine]})

    def up(self, **spec: Any) -> None:
        """Deploy, make everything ready and wait until the operator says so."""
        self.deploy(**spec)
        self.make_ready()

    def fit(self, name: str, **spec: Any) -> Object:
        return self.kube.create(FIT, {"name": name}, spec={"deploymentRef": {"name": self.name}, **spec})

    def report(self, name: str, *, verdict: str = "Accepted", k: int = 2, **fields: Any) -> str:
        """Wait for a fit's Job and write what it would write; return the digest of the set."""
        fit = self.kube.until(lambda: self.kube.find(FIT, name), f"EldrFit {name}")
        self.kube.until(lambda: self.kube.find("Job", name), f"Job {name}")
        digest = f"sha256:{name.encode().hex():0<64}"[:71]
        owner = {"apiVersion": contract.API_VERSION, "kind": FIT, "name": name, "uid": fit["metadata"]["uid"]}
        metadata = {
            "labels": {contract.LABEL_DEPLOYMENT: self.name, contract.LABEL_FIT: name},
            "ownerReferences": [owner | {"controller": True}],
        }
        shard = contract.shard_name(name, digest, 0)
        pointer = {"fit": name, "digest": digest, "k": k, "shards": [{"name": shard, "sha256": "00"}]}
        if verdict == "Accepted":
            self.kube.create(
                "ConfigMap",
                metadata | {"name": shard},
                immutable=True,
                binaryData={contract.SHARD_KEY: "AAAA"},
            )
        report = {
            "version": contract.REPORT_VERSION,
            "verdict": verdict,
            "reason": "Better",
            "message": "saves 9.1% of active experts",
            "set": pointer if verdict == "Accepted" else None,
            "samples": 1234,
            "layers_kept": [1, 2, 3],
            "rho": 0.8123,
            "weighting": "counts",
            "imbalance": 1.0,
            "reduction": 0.0912,
        }
        data = {contract.REPORT_KEY: json.dumps(report | fields)}
        self.kube.create(
            "ConfigMap", metadata | {"name": contract.report_name(name)}, immutable=True, data=data
        )
        self.end_job(name, "Succeeded")
        return digest

    def serve(self, name: str, **report: Any) -> str:
        """Have the set of a new fit active; return its digest."""
        self.fit(name)
        digest = self.report(name, **report)
        self.until_active(name)
        return digest

    def end_job(self, name: str, phase: str, pod_name: str | None = None) -> None:
        """End the pods of a Job, or one of them, until it has ended."""

        def ended() -> bool:
            for pod in self.kube.list("Pod", f"batch.kubernetes.io/job-name={name}"):
                if pod["status"].get("phase") != phase and pod_name in {None, pod["metadata"]["name"]}:
                    self.kube.strategic(
                        "Pod", pod["metadata"]["name"], {"status": {"phase": phase}}, "status"
                    )
            conditions = self.kube.get("Job", name).get("status", {}).get("conditions", [])
            return any(found["type"] in {"Complete", "Failed"} for found in conditions)

        self.kube.until(ended, f"Job {name} ended")

    def remade_routing(self) -> Object:
        """Delete what the operator knows, and return the table that it makes: a pass that has read it before writes it anew."""
        name = contract.routing_name(self.name)
        before = self.kube.get("ConfigMap", name)["metadata"]["uid"]
        self.kube.delete("ConfigMap", name)

        def other() -> Object | None:
            live = self.kube.find("ConfigMap", name)
            return live if live and live["metadata"]["uid"] != before else None

        data = self.kube.until(other, "the routing table again")["data"]
        return json.loads(data[contract.ROUTING_KEY])

    def events(self) -> list[str]:
        """Return the reasons of all Events."""
        return [event["reason"] for event in self.kube.list("Event")]

    def until_told(self, *reasons: str) -> None:
        """Wait for Events with these reasons: they are written after the status that they tell of."""
        self.kube.until(lambda: set(reasons) <= set(self.events()), f"Events {reasons}", show=self.events)

    def until_after(self, stamp: str) -> None:
        """Wait until what happens next has a later time stamp: they hold whole seconds."""
        later = datetime.fromisoformat(stamp) + timedelta(seconds=1)
        self.kube.until(lambda: self.kube.now() >= later, f"a second after {stamp}")

    def active(self) -> str | None:
        return (self.status.get("centroids", {}).get("active") or {}).get("fit")

    def until_active(self, fit: str) -> None:
        self.kube.until(lambda: self.active() == fit, f"{fit} active", show=lambda: self.status)
