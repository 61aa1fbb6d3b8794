"""Two operators of one release on a real API server: one acts, the other one takes its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.operator.conftest import SYSTEM, Operator
from tests.operator.world import World
from tests.support.kube import Kube
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/eldr-operator"


class Pair:
    """Two operators; each test leaves both running."""

    def __init__(self, made: dict[str, Operator], kube: Kube) -> None:
        self._made, self._kube = made, kube

    def start(self, name: str) -> None:
        self._made[name].start(options=[f"--lease-namespace={SYSTEM}", f"--identity={name}"])

    def roles(self) -> tuple[str, str]:
        """Return the name of the one that acts, and of the one that waits."""
        (acts,) = (name for name, one in self._made.items() if value(one, "eldr_operator_leader") == 1)
        (waits,) = self._made.keys() - {acts}
        return acts, waits

    def __getitem__(self, name: str) -> Operator:
        return self._made[name]

    def until_acts(self, name: str, seconds: float) -> None:
        one = self._made[name]
        wait_for(lambda: value(one, "eldr_operator_leader") == 1, "it to act", seconds, one.said)
        assert self._kube.request("GET", LEASE)["spec"]["holderIdentity"] == name


def value(operator: Operator, name: str) -> float:
    """Return the sum of a metric's series."""
    return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", operator.metrics(), re.MULTILINE)))


@pytest.fixture(scope="module")
def pair(operator, installed, tmp_path_factory) -> Iterator[Pair]:
    operator.stop()
    made = {name: Operator(installed, tmp_path_factory.mktemp(name)) for name in ("first", "second")}
    with Kube(installed, SYSTEM) as kube:
        found = Pair(made, kube)
        found.start("first")
        found.until_acts("first", 30)
        found.start("second")
        yield found
        kube.request("DELETE", LEASE)
    for one in made.values():
        if one.is_running():
            one.stop()
    operator.start()


@pytest.fixture
def world(kube):
    made = World(kube)
    yield made
    made.close()


def replicas(world):
    return world.kube.get("StatefulSet", "x-decode")["spec"]["replicas"]


def test_one_acts_and_the_other_takes_its_place_when_it_ends(pair, world):
    acts, waits = pair.roles()
    written = value(pair[waits], "eldr_operator_writes_total")
    world.up()
    assert value(pair[waits], "eldr_operator_writes_total") == written
    assert pair[waits].asked("/readyz") == (200, "ok\n")
    before = world.kube.get("StatefulSet", "x-decode")["metadata"]["generation"]
    assert pair[acts].stop() == 0
    pair.until_acts(waits, 10)  # at once: the first one has given it back
    world.patch(decode={"replicas": 3})
    wait_for(lambda: replicas(world) == 3, "the other one to act", 30, pair[waits].said)
    assert world.kube.get("StatefulSet", "x-decode")["metadata"]["generation"] == before + 1
    pair.start(acts)
    assert pair.roles() == (waits, acts)


@pytest.mark.long  # tests/unit/operator/test_lease.py says the same by a clock of its own
def test_one_that_died_is_succeeded(pair, world):
    acts, waits = pair.roles()
    world.deploy()
    wait_for(lambda: world.kube.find("StatefulSet", "x-decode"), "the StatefulSet", 30)
    pair[acts].kill()
    world.patch(decode={"replicas": 4})
    pair.until_acts(waits, 60)
    wait_for(lambda: replicas(world) == 4, "the other one to act", 30, pair[waits].said)
    pair.start(acts)


def test_one_that_has_lost_its_lease_ends(pair, kube):
    acts, waits = pair.roles()
    taken = {"spec": {"holderIdentity": "third"}}
    kube.request("PATCH", LEASE, taken, "application/merge-patch+json")
    wait_for(lambda: not pair[acts].is_running(), "it to end", 30)
    assert "lost Lease eldr-system/eldr-operator to third" in pair[acts].said()
    assert "Traceback" not in pair[acts].log.read_text()
    kube.request("PATCH", LEASE, {"spec": {"holderIdentity": ""}}, "application/merge-patch+json")
    pair.until_acts(waits, 30)
    pair.start(acts)
