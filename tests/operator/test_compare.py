"""`eldr compare` on a real API server: what it sets, and how that is undone, also by another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eldr import contract
from eldr.compare import hold
from tests.support.processes import ELDR, wait_for

pytestmark = [pytest.mark.kube, pytest.mark.process, pytest.mark.timeout(300)]

KIND = contract.KIND_DEPLOYMENT


@pytest.fixture
def begin(world, tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a comparison with JSQ, or other arguments."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        where = ["--kubeconfig", str(world.kube.cluster.kubeconfig), "-n", world.kube.namespace]
        usual = ["--against=JSQ", "--hours=1", "--window=4", "--carry-over=1", "--seed=1"]
        command = [str(ELDR), "compare", world.name, *where, *(arguments or usual)]
        log = (tmp_path / f"{len(started)}.log").open("w")
        running = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, text=True, env={**os.environ}
        )
        log.close()
        started.append(running)
        return running

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()


def ended(tmp_path, process, number: int) -> tuple[int, str]:
    code = process.wait(60)
    return code, " ".join((tmp_path / f"{number}.log").read_text().split())


def spec(world) -> dict[str, Any]:
    return world.kube.get(KIND, world.name)["spec"]


def mark(world) -> str | None:
    return (world.kube.get(KIND, world.name)["metadata"].get("annotations") or {}).get(hold.ANNOTATION)


def until_policy(world, policy: str) -> None:
    wait_for(
        lambda: mark(world) and spec(world)["router"]["policy"] == policy, f"{policy} by a comparison", 60
    )


def uids(world) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.kube.list("Pod", contract.LABEL_ROLE)}


def test_policies_alternate_no_pod_is_replaced_and_sigterm_restores(world, begin, tmp_path):
    world.up()
    before, pods = spec(world), uids(world)
    running = begin()
    until_policy(world, "JSQ")
    assert spec(world)["refit"]["suspend"] == "Enabled"
    assert spec(world)["refit"]["drift"]["mode"] == "Observe"
    until_policy(world, "MarginalUnion")
    until_policy(world, "JSQ")
    second = begin()
    code, said = ended(tmp_path, second, 1)
    assert code == 1
    assert "InUse: another eldr compare holds the deployment" in said
    running.send_signal(signal.SIGTERM)
    code, said = ended(tmp_path, running, 0)
    assert (code, "Stopped: somebody ended it" in said) == (1, True), said
    assert "policy MarginalUnion as before" in said
    assert spec(world) == before
    assert mark(world) is None
    assert uids(world) == pods


def test_what_a_killed_one_left_is_restored(world, begin, tmp_path):
    world.up()
    before = spec(world)
    running = begin()
    until_policy(world, "JSQ")
    running.kill()
    running.wait()
    assert spec(world) != before
    code, said = ended(tmp_path, begin("--restore"), 1)
    assert (code, "InUse" in said) == (1, True), said
    old = json.loads(mark(world)) | {"until": "2026-01-01T00:00:00Z"}
    world.kube.merge(KIND, world.name, {"metadata": {"annotations": {hold.ANNOTATION: json.dumps(old)}}})
    code, said = ended(tmp_path, begin("--restore"), 2)
    assert (code, "policy MarginalUnion as before" in said) == (0, True), said
    assert spec(world) == before
    assert mark(world) is None
    code, said = ended(tmp_path, begin("--restore"), 3)
    assert (code, said) == (0, "nothing to restore")


def test_what_somebody_else_sets_meanwhile_stays(world, begin, tmp_path):
    world.up()
    before = spec(world)
    running = begin()
    until_policy(world, "JSQ")
    world.patch(router={"policy": "RoundRobin"})
    code, said = ended(tmp_path, running, 0)
    assert (code, "Interfered: somebody set router.policy to RoundRobin" in said) == (1, True), said
    assert spec(world) == before | {"router": before["router"] | {"policy": "RoundRobin"}}
    assert mark(world) is None
