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
    """Two operators, the first of which acts."""

    def __init__(self, first: Operator, second: Operator, kube: Kube) -> None:
        self.first, self.second = first, second
        self._kube = kube
        self._names = {id(first): "first", id(second): "second"}

    def start(self, one: Operator) -> None:
        one.start(options=[f"--lease-namespace={SYSTEM}", f"--identity={self._names[id(one)]}"])

    def holder(self) -> str:
        return self._kube.request("GET", LEASE)["spec"].get("holderIdentity", "")

    def until_acts(self, one: Operator, seconds: float = 30) -> None:
        wait_for(lambda: value(one, "eldr_operator_leader") == 1, "it to act", seconds, one.said)
        assert self.holder() == self._names[id(one)]


def value(operator: Operator, name: str) -> float:
    """Return the sum of a metric's series."""
    return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", operator.metrics(), re.MULTILINE)))


@pytest.fixture
def pair(operator, installed, kube, tmp_path) -> Iterator[Pair]:
    operator.stop()
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made.append(Operator(installed, tmp_path / name))
    found = Pair(*made, kube)
    found.start(found.first)
    found.until_acts(found.first)
    found.start(found.second)
    yield found
    for one in made:
        if one.is_running():
            one.stop()
    kube.request("DELETE", LEASE)
    operator.start()


@pytest.fixture
def world(kube):
    made = World(kube)
    yield made
    made.close()


def replicas(world):
    return world.kube.get("StatefulSet", "x-decode")["spec"]["replicas"]


def test_one_acts_and_the_other_takes_its_place(pair, world):
    world.up()
    assert value(pair.second, "eldr_operator_writes_total") == 0
    assert value(pair.second, "eldr_operator_leader") == 0
    assert pair.second.asked("/readyz") == (200, "ok\n")
    before = world.kube.get("StatefulSet", "x-decode")["metadata"]["generation"]

    assert pair.first.stop() == 0
    pair.until_acts(pair.second, 10)  # at once: the first one has given it back
    world.patch(decode={"replicas": 3})
    wait_for(lambda: replicas(world) == 3, "the second one to act", 30, pair.second.said)
    assert world.kube.get("StatefulSet", "x-decode")["metadata"]["generation"] == before + 1

    pair.start(pair.first)
    assert value(pair.first, "eldr_operator_leader") == 0
    pair.second.kill()
    world.patch(decode={"replicas": 2})
    pair.until_acts(pair.first, 60)
    wait_for(lambda: replicas(world) == 2, "the first one to act", 30, pair.first.said)


def test_one_that_has_lost_its_lease_ends(pair, kube):
    taken = {"spec": {"holderIdentity": "third"}}
    kube.request("PATCH", LEASE, taken, "application/merge-patch+json")
    wait_for(lambda: not pair.first.is_running(), "the first one to end", 30)
    assert "lost Lease eldr-system/eldr-operator to third" in pair.first.said()
    assert "Traceback" not in pair.first.log.read_text()
    assert value(pair.second, "eldr_operator_leader") == 0
