"""Changes while things fail: whatever fails, a deployment ends as one with the same spec of which nothing has failed.

A sequence is drawn from its seed. A failure prints the seed and what was done; add the seed to SEEDS.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from eldr import contract
from eldr_kube.cluster import CommandError
from eldr_kube.processes import signal_group
from eldr_operator.clock import utc_now
from tests.operator.conftest import Operator
from tests.operator.test_children import broken_webhook
from tests.operator.world import FIT, KIND, SCALER, World
from tests.support.kube import Kube, Object, Refused
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

SEEDS = (1, 2)
LONG_SEEDS = range(3, 21)
STEPS, LONG_STEPS = 4, 8
SETTLE_SECONDS = 180
SHOWN = ("Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "Role", "RoleBinding", SCALER)
CLUSTERS_OWN = {"clusterIP", "clusterIPs"}


@dataclass
class Plan:
    """What has been asked of a deployment since it was created last."""

    spec: dict[str, Any] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    fits: list[tuple[str, int]] = field(default_factory=list)


class Changes:
    """What people do to a deployment."""

    def __init__(self, world: World, draw: random.Random) -> None:
        self.world, self.plan = world, Plan()
        self._draw = draw
        self._number = 0

    def one(self) -> tuple[str, Callable[[], None]]:
        """Draw a change."""
        kinds = [self.roll, self.scale, self.tune, self.fit, self.recreate]
        chosen = self._draw.choice(kinds)
        return chosen.__name__, chosen

    def roll(self) -> None:
        """Replace pods of one role."""
        role = self._draw.choice(["prefill", "decode"])
        self._patch(role, env=[{"name": "CHANGED", "value": str(self._draw.randrange(3))}])

    def scale(self) -> None:
        name = self._draw.choice(["x-prefill", "x-decode"])
        count = self._draw.randint(1, 3)
        live = wait_for(lambda: self.world.kube.find(SCALER, name), name)
        if live["spec"]["replicas"] != count:  # else nobody's replicas change hands
            self.world.kube.merge(SCALER, name, {"spec": {"replicas": count}}, "scale")
            self.plan.replicas[name] = count

    def tune(self) -> None:
        self._patch("router", tau=f"0.{self._draw.randint(1, 9)}")

    def fit(self, name: str = "") -> None:
        self._number += 1
        name, k = name or f"fit-{self._number}", self.plan.replicas.get("x-decode", 2)
        self.world.fit(name, k=k)
        self.plan.fits.append((name, k))

    def recreate(self) -> None:
        for fit in self.world.kube.list(
            FIT
        ):  # the next deployment would take over what this one has not adopted yet
            self.world.kube.delete(FIT, fit["metadata"]["name"])
        before = self.world.kube.get(KIND, "x")
        self.world.kube.delete(KIND, "x")
        wait_for(lambda: self._is_gone(before), "the deployment gone")
        self.plan = Plan(self.plan.spec)
        self.world.deploy(**self.plan.spec)

    def end(self) -> None:
        """Fit for what runs, so that earlier sets do not matter."""
        self.settle()
        ended = max((self._ended(name) for name, _ in self.plan.fits), default=utc_now())
        wait_for(lambda: utc_now() > ended + timedelta(seconds=1), "the next second: fits are ordered by it")
        self.fit("last")
        self.settle()
        self.world.until_active("last")

    def settle(self) -> None:
        """Play what is no part of the operator: kubelets, and the programs of fits."""
        self.world.make_ready(SETTLE_SECONDS)
        for name, k in self.plan.fits:
            if not self.world.kube.get(FIT, name).get("status", {}).get("finishedAt"):
                self.world.report(name, k=k)
                self.world.kube.until_condition(FIT, name, "Succeeded", status="True")

    def _ended(self, name: str) -> datetime:
        return datetime.fromisoformat(self.world.kube.get(FIT, name)["status"]["finishedAt"])

    def _is_gone(self, before: Object) -> bool:
        live = self.world.kube.find(KIND, "x")
        return live is None or live["metadata"]["uid"] != before["metadata"]["uid"]

    def _patch(self, part: str, **fields: Any) -> None:
        self.plan.spec[part] = {**self.plan.spec.get(part, {}), **fields}
        self.world.patch(**{part: fields})


class Faults:
    """What fails meanwhile."""

    def __init__(self, operator: Operator, rival: Operator, world: World) -> None:
        self._operator, self._rival, self._world = operator, rival, world
        self._kube = world.kube
        self._control_plane = operator.cluster.control_plane

    def all(self) -> list[Callable[[], AbstractContextManager[None]]]:
        return [
            self.killed,
            self.stopped,
            self.hung,
            self.rivalled,
            self.api_server_killed,
            self.etcd_paused,
            self.webhook_down,
            self.no_pods_allowed,
            self.routers_deaf,
            self.others_write,
            self.children_deleted,
        ]

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        self._operator.kill()
        yield
        self._operator.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        yield
        self._operator.stop()
        self._operator.start()

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        self._operator.pause()
        try:
            yield
        finally:
            self._operator.resume()

    @contextlib.contextmanager
    def rivalled(self) -> Iterator[None]:
        """Two act at the same time, as without a Lease."""
        self._rival.start()
        try:
            yield
            before = self._rival.passes()
            wait_for(lambda: self._rival.passes() > before + 2, "passes of both")
        finally:
            self._rival.stop()

    @contextlib.contextmanager
    def api_server_killed(self) -> Iterator[None]:
        yield
        self._control_plane.restart_api_server()

    @contextlib.contextmanager
    def etcd_paused(self) -> Iterator[None]:
        yield
        etcd = self._control_plane.processes["etcd"]
        signal_group(etcd, signal.SIGSTOP)
        try:
            wait_for(lambda: not self._is_ready(), "an API server without etcd")
        finally:
            signal_group(etcd, signal.SIGCONT)
        wait_for(self._is_ready, "an API server with etcd")

    @contextlib.contextmanager
    def webhook_down(self) -> Iterator[None]:
        with broken_webhook(self._kube, "policy", "poddisruptionbudgets"):
            yield
            with contextlib.suppress(Refused):
                self._kube.delete("PodDisruptionBudget", "x-decode")

    @contextlib.contextmanager
    def no_pods_allowed(self) -> Iterator[None]:
        url = f"/api/v1/namespaces/{self._kube.namespace}/resourcequotas"
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
        self._kube.request("POST", url, body | {"spec": {"hard": {"pods": "0"}}})
        try:
            yield
        finally:
            self._kube.request("DELETE", f"{url}/none")

    @contextlib.contextmanager
    def routers_deaf(self) -> Iterator[None]:
        for router in self._world.routers.values():
            router.is_deaf = True
        try:
            yield
        finally:
            for router in self._world.routers.values():
                router.is_deaf = False

    @contextlib.contextmanager
    def others_write(self) -> Iterator[None]:
        """Somebody changes what the operator has made, and annotates everything between its reads and writes."""
        command = ["-n", self._kube.namespace, "set", "env", "deployment/x-prefill", "FOREIGN=1"]
        self._kube.cluster.kubectl(*command)
        for count in range(5):
            body = {"metadata": {"annotations": {"example.com/count": str(count)}}}
            for kind, name in ((KIND, "x"), ("StatefulSet", "x-decode"), (SCALER, "x-decode")):
                with contextlib.suppress(Refused):
                    self._kube.merge(kind, name, body)
        yield

    @contextlib.contextmanager
    def children_deleted(self) -> Iterator[None]:
        yield
        for kind, name in (("Service", "x"), ("RoleBinding", "x-router"), ("StatefulSet", "x-decode")):
            with contextlib.suppress(Refused):
                self._kube.delete(kind, name)

    def _is_ready(self) -> bool:
        try:
            self._kube.cluster.kubectl("get", "--raw", "/readyz/etcd", "--request-timeout=5s")
        except CommandError:
            return False
        return True


def end_state(world: World) -> dict[str, Any]:
    """Return what the operator has made of a deployment, and says of it, without what differs from one to the next."""
    made: dict[str, Any] = {
        f"{kind} {found['metadata']['name']}": _wanted(found)
        for kind in SHOWN
        for found in world.kube.list(kind, f"{contract.LABEL_MANAGED_BY}={contract.FIELD_MANAGER}")
    }
    for pod in world.kube.list("Pod", contract.LABEL_ROLE):
        labels = pod["metadata"]["labels"]
        made.setdefault("pods", Counter())[labels[contract.LABEL_ROLE], labels[contract.LABEL_REVISION]] += 1
    routing, status = world.routing, world.status
    made["routing"] = {key: routing[key] for key in ("policy", "tau", "slots")}
    made["sets"] = [(routing[key] or {}).get("fit") for key in ("active", "staged")]
    made["conditions"] = {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}
    made["roles"] = [status[role] for role in ("prefill", "decode")]
    made["secret"] = world.kube.find("Secret", contract.admin_secret_name("x")) is not None
    return made


def _wanted(found: Object) -> Object:
    spec = {key: value for key, value in found.get("spec", {}).items() if key not in CLUSTERS_OWN}
    others = {key: found[key] for key in ("rules", "roleRef") if key in found}
    for rule in others.get("rules", ()):
        # the set before the last may still be read, and so differs by what happened
        rule["resourceNames"] = [
            name for name in rule.get("resourceNames", ()) if not name.startswith("fit-")
        ]
    return {"labels": found["metadata"]["labels"], "spec": spec, **others}


@pytest.fixture
def rival(operator, tmp_path):
    made = Operator(operator.cluster, tmp_path)
    yield made
    if made.is_running():
        made.stop()


@pytest.fixture
def undisturbed(installed, kube):
    """A world in another namespace."""
    name = f"{kube.namespace}-undisturbed"
    installed.create_namespace(name)
    with Kube(installed, name) as client:
        made = World(client)
        yield made
        made.close()


def built(world: World, plan: Plan) -> None:
    """Ask for the same at once, and let nothing fail."""
    changes = Changes(world, random.Random())
    world.deploy(**plan.spec)
    changes.settle()
    for name, count in plan.replicas.items():
        wait_for(lambda name=name: world.kube.find(SCALER, name), name)
        world.kube.merge(SCALER, name, {"spec": {"replicas": count}}, "scale")
    changes.plan.replicas = plan.replicas
    changes.end()


def run(seed: int, steps: int, operator: Operator, rival: Operator, world: World, undisturbed: World) -> None:
    draw = random.Random(seed)
    changes, faults = Changes(world, draw), Faults(operator, rival, world)
    done: list[str] = []
    try:
        world.up(**changes.plan.spec)
        for _ in range(steps):
            (name, change), fault = changes.one(), draw.choice(faults.all())
            done.append(f"{name} while {fault.__name__}")
            with fault():
                change()
            # what is left of a deployment that was deleted must go before its like is changed
            if name == "recreate" or draw.random() < 0.5:
                changes.settle()
        changes.end()
        built(undisturbed, changes.plan)
        wait_for(
            lambda: end_state(world) == end_state(undisturbed),
            "the same end",
            60,
            lambda: _differences(world, undisturbed),
        )
    except BaseException as error:
        error.add_note(f"seed {seed}: {'; '.join(done)}")
        raise


def _differences(world: World, undisturbed: World) -> dict[str, tuple[Any, Any]]:
    found, wanted = end_state(world), end_state(undisturbed)
    return {
        key: (found.get(key), wanted.get(key))
        for key in found.keys() | wanted.keys()
        if found.get(key) != wanted.get(key)
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deployment_ends_the_same_whatever_fails_on_the_way(seed, operator, rival, world, undisturbed):
    run(seed, STEPS, operator, rival, world, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_a_deployment_ends_the_same_whatever_fails_on_a_long_way(seed, operator, rival, world, undisturbed):
    run(seed, LONG_STEPS, operator, rival, world, undisturbed)
