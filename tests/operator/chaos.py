"""Changes of a deployment and what it must end as, whatever fails meanwhile: drawn from a seed, for any cluster."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from eldr import contract
from tests.operator.world import FIT, KIND, SCALER, World
from tests.support.kube import Object, Refused

SETTLE_SECONDS = 180
Fault = Callable[[], AbstractContextManager[None]]
SHOWN = (
    "Deployment",
    "StatefulSet",
    "Service",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    SCALER,
)
CLUSTERS_OWN = {"clusterIP", "clusterIPs"}


class CommonFaults:
    """What fails in the same way on a real and on a simulated cluster."""

    def __init__(self, world: World) -> None:
        self._world, self._kube = world, world.kube

    def _a_while(self, most: float = 20.0) -> None:
        """Let up to so many seconds pass, where time passes only if somebody lets it."""

    @contextlib.contextmanager
    def _routers(self, what: str) -> Iterator[None]:
        """Have routers be something for a while, such as ``is_deaf``."""
        routers = [*self._world.routers.values()]
        for router in routers:
            setattr(router, what, True)
        try:
            yield
            self._a_while()
        finally:
            for router in routers:
                setattr(router, what, False)

    @contextlib.contextmanager
    def routers_deaf(self) -> Iterator[None]:
        with self._routers("is_deaf"):
            yield

    def _annotate(self) -> None:
        """Annotate everything between the operator's reads and writes."""
        for count in range(5):
            body = {"metadata": {"annotations": {"example.com/count": str(count)}}}
            for kind, name in ((KIND, "x"), ("StatefulSet", "x-decode"), (SCALER, "x-decode")):
                with contextlib.suppress(Refused):
                    self._kube.merge(kind, name, body)
            self._a_while(0.2)

    @contextlib.contextmanager
    def children_deleted(self) -> Iterator[None]:
        yield
        for kind, name in (("Service", "x"), ("RoleBinding", "x-router"), ("StatefulSet", "x-decode")):
            with contextlib.suppress(Refused):
                self._kube.delete(kind, name)


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
        self.kinds = [self.roll, self.scale, self.tune, self.fit, self.recreate]

    def one(self) -> tuple[str, Callable[[], None]]:
        """Draw a change."""
        chosen = self._draw.choice(self.kinds)
        return chosen.__name__, chosen

    def roll(self) -> None:
        """Replace pods of one role."""
        role = self._draw.choice(["prefill", "decode"])
        self._patch(role, env=changed(str(self._draw.randrange(3))))

    def scale(self) -> None:
        name = self._draw.choice(["x-prefill", "x-decode"])
        count = self._draw.randint(1, 3)
        live = self.world.kube.until(lambda: self.world.kube.find(SCALER, name), name)
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
        # the next deployment would take over what this one has not adopted yet
        for fit in self.world.kube.list(FIT):
            self.world.kube.delete(FIT, fit["metadata"]["name"])
        before = self.world.kube.get(KIND, "x")
        self.world.kube.delete(KIND, "x")
        self.world.kube.until(lambda: self._is_gone(before), "the deployment gone")
        self.plan = Plan(self.plan.spec)
        self.world.deploy(**self.plan.spec)

    def end(self) -> None:
        """Fit for what runs, so that earlier sets do not matter."""
        self.settle()
        for name, _ in self.plan.fits:
            self.world.until_after(self.world.kube.get(FIT, name)["status"]["finishedAt"])
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

    def _is_gone(self, before: Object) -> bool:
        live = self.world.kube.find(KIND, "x")
        return live is None or live["metadata"]["uid"] != before["metadata"]["uid"]

    def _patch(self, part: str, **fields: Any) -> None:
        self.plan.spec[part] = {**self.plan.spec.get(part, {}), **fields}
        self.world.patch(**{part: fields})


def changed(value: str) -> list[Object]:
    """Return the environment of pods that another value replaces."""
    return [{"name": "CHANGED", "value": value}]


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


def built(world: World, plan: Plan) -> None:
    """Ask for the same at once, and let nothing fail."""
    changes = Changes(world, random.Random())
    world.deploy(**plan.spec)
    changes.settle()
    for name, count in plan.replicas.items():
        live = world.kube.until(lambda name=name: world.kube.find(SCALER, name), name)
        if live["spec"]["replicas"] == count:  # else nobody's replicas change hands
            world.kube.merge(SCALER, name, {"spec": {"replicas": count % 3 + 1}}, "scale")
            role = name.removeprefix("x-")
            world.kube.until(
                lambda role=role: "scaledBy" in world.status[role], f"{name} told to be somebody's"
            )
        world.kube.merge(SCALER, name, {"spec": {"replicas": count}}, "scale")
    changes.plan.replicas = plan.replicas
    changes.end()


def run(
    seed: int,
    steps: int,
    faults: Sequence[Fault],
    world: World,
    undisturbed: World,
    kind: type[Changes] = Changes,
) -> None:
    """Draw changes and faults, and compare what is there in the end with a world that was asked for the same at once."""
    draw = random.Random(seed)
    changes = kind(world, draw)
    done: list[str] = []
    try:
        world.up(**changes.plan.spec)
        for _ in range(steps):
            (name, change), fault = changes.one(), draw.choice(faults)
            done.append(f"{name} while {fault.__name__}")
            with fault():
                change()
            # what is left of a deployment that was deleted must go before its like is changed
            if name == "recreate" or draw.random() < 0.5:
                changes.settle()
        changes.end()
        built(undisturbed, changes.plan)
        world.kube.until(
            lambda: _ends_alike(world, undisturbed),
            "the same end",
            60,
            lambda: _differences(world, undisturbed),
        )
    except BaseException as error:
        error.add_note(f"seed {seed}: {'; '.join(done)}")
        raise


def _ends_alike(world: World, undisturbed: World) -> bool:
    for each in (world, undisturbed):
        each.run_pods()  # those of a StatefulSet that was deleted may go only now, and replicas told later than all was ready
    return end_state(world) == end_state(undisturbed)


def _differences(world: World, undisturbed: World) -> dict[str, tuple[Any, Any]]:
    found, wanted = _leaves(end_state(world)), _leaves(end_state(undisturbed))
    return {
        key: (found.get(key), wanted.get(key))
        for key in found.keys() | wanted.keys()
        if found.get(key) != wanted.get(key)
    }


def _leaves(state: Any, path: str = "") -> dict[str, Any]:
    """Return what a state holds by where it is, so that a failure shows what differs and nothing else."""
    if not isinstance(state, dict | list) or not state:
        return {path: state}
    items = state.items() if isinstance(state, dict) else enumerate(state)
    return {name: leaf for key, below in items for name, leaf in _leaves(below, f"{path}/{key}").items()}
