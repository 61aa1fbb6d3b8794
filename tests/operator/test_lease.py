"""Two operators of one release on a real API server: one acts, the other one takes its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
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
        held = lambda: [name for name, one in self._made.items() if holds(one)]  # noqa: E731
        wait_for(lambda: len(held()) == 1, "one of them to act")
        (acts,) = held()
        (waits,) = self._made.keys() - {acts}
        return acts, waits

    def __getitem__(self, name: str) -> Operator:
        return self._made[name]

    def until_acts(self, name: str, seconds: float) -> None:
        one = self._made[name]
        wait_for(lambda: holds(one), "it to act", seconds, one.said)
        assert self._kube.request("GET", LEASE)["spec"]["holderIdentity"] == name


def holds(operator: Operator) -> bool:
    """Tell whether it acts; while it begins again, it has no metrics."""
    try:
        return value(operator, "eldr_operator_leader") == 1
    except httpx.HTTPError:
        return False


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
    return world.workload("decode")["spec"]["replicas"]


def test_one_acts_and_the_other_takes_its_place_when_it_ends(pair, world):
    acts, waits = pair.roles()
    written = value(pair[waits], "eldr_operator_writes_total")
    world.up()
    assert value(pair[waits], "eldr_operator_writes_total") == written
    assert pair[waits].asked("/readyz") == (200, "ok\n")
    before = world.workload("decode")["metadata"]["generation"]
    assert pair[acts].stop() == 0
    pair.until_acts(waits, 10)  # at once: the first one has given it back
    world.patch(decode={"replicas": 3})
    wait_for(lambda: replicas(world) == 3, "the other one to act", 30, pair[waits].said)
    assert world.workload("decode")["metadata"]["generation"] == before + 1
    pair.start(acts)
    assert pair.roles() == (waits, acts)


def waits_for_it(one):
    """It has begun again: it answers, and does not act."""
    return one.asked("/readyz") == (200, "ok\n") and value(one, "eldr_operator_leader") == 0


def test_one_that_has_lost_its_lease_waits_for_it_again_without_a_restart(pair, world):
    acts, waits = pair.roles()
    world.deploy()
    wait_for(lambda: world.kube.find("StatefulSet", "x-decode"), "the StatefulSet", 30)
    merge = "application/merge-patch+json"
    world.kube.request("PATCH", LEASE, {"spec": {"holderIdentity": "third"}}, merge)
    lost = "lost Lease eldr-system/eldr-operator to third"
    wait_for(
        lambda: lost in pair[acts].said() and waits_for_it(pair[acts]), "it to wait", 30, pair[acts].said
    )
    world.patch(decode={"replicas": 3})
    world.kube.request("PATCH", LEASE, {"spec": {"holderIdentity": ""}}, merge)
    wait_for(lambda: replicas(world) == 3, "either to act", 30, pair[waits].said)
    assert pair[acts].is_running()
    assert pair[waits].is_running()
    for one in (acts, waits):
        assert "Traceback" not in pair[one].log.read_text()


@pytest.mark.costly
def test_an_api_server_that_is_away_restarts_nobody(pair, world, tmp_path):
    """Neither those that run nor one that starts meanwhile: a kubelet that restarts them would help nobody."""
    world.deploy()
    wait_for(lambda: world.kube.find("StatefulSet", "x-decode"), "the StatefulSet", 30)
    plane = pair["first"].cluster.control_plane
    third = Operator(pair["first"].cluster, tmp_path)
    kubeconfig = third.log_in()
    with plane.without_api_server():
        third.start(
            is_ready=False, kubeconfig=kubeconfig, options=[f"--lease-namespace={SYSTEM}", "--identity=third"]
        )
        unreachable = lambda: third.asked("/readyz")  # noqa: E731
        wait_for(lambda: "no answer from the API server" in unreachable()[1], "it to be told", 30, third.said)
        wait_for(lambda: not any(holds(pair[name]) for name in ("first", "second")), "nobody to act")
        for one in (pair["first"], pair["second"], third):
            assert one.asked("/healthz")[0] == 200
    try:
        world.patch(decode={"replicas": 3})
        wait_for(lambda: replicas(world) == 3, "one of them to act", 90, third.said)
        wait_for(lambda: third.asked("/readyz")[0] == 200, "a ready operator", 60, third.said)
        assert sum(map(holds, (pair["first"], pair["second"], third))) == 1
    finally:
        assert third.stop() == 0, third.said()
    for name in ("first", "second"):
        assert pair[name].is_running()
        assert "Traceback" not in pair[name].log.read_text()
