"""Kill -9 of a fit's process, and routers that begin anew, at each step between the detection of drift and the activation of its set."""

from __future__ import annotations

import json

import pytest

from eldr import contract
from tests.operator.real_fits import OTHER, detected, history
from tests.operator.world import FIT
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]


def config_maps(world, name=None):
    return world.kube.list("ConfigMap", f"{contract.LABEL_FIT}={name}" if name else "")


def at_once(world, start):
    start().kill()


def while_it_reads_the_log(world, start):
    one = world.router
    one.may_answer.clear()
    run = start()
    assert one.is_read.wait(60), run.log.read_text()
    run.kill()
    one.may_answer.set()


def with_its_set_written_and_no_report(world, start):
    """A quota lets it create one more ConfigMap, the shard; it tries again to write the report, for a while."""
    quota = {"count/configmaps": str(len(config_maps(world)) + 1)}
    manifest = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": quota},
    }
    kubectl = world.kube.cluster.kubectl
    kubectl("-n", world.kube.namespace, "apply", "-f", "-", stdin=json.dumps(manifest))
    run = start()
    wait_for(lambda: config_maps(world, "x-drift-1"), "a shard", 90, run.log.read_text)
    assert world.kube.find("ConfigMap", contract.report_name("x-drift-1")) is None
    run.kill()
    kubectl("-n", world.kube.namespace, "delete", "resourcequota", "tight")


def after_its_report(world, start):
    run = start()
    wait_for(
        lambda: world.kube.find("ConfigMap", contract.report_name("x-drift-1")),
        "the report",
        90,
        run.log.read_text,
    )
    run.kill()


def ends_well(world, report):
    """Wait until the set of the report serves, after one fit of drift that was activated once."""
    world.until_active("x-drift-1")
    detected(world, status="False", reason="Quiet")
    assert [fit["metadata"]["name"] for fit in world.kube.list(FIT)] == ["x-bootstrap", "x-drift-1"]
    assert history(world) == [("x-bootstrap", "Accepted"), ("x-drift-1", "Accepted")]
    assert (world.routing["epoch"], world.routing["staged"]) == (2, None)
    assert world.router.answer_state()["active"]["digest"] == report["set"]["digest"]


@pytest.mark.costly
@pytest.mark.parametrize(
    "killed", [at_once, while_it_reads_the_log, with_its_set_written_and_no_report, after_its_report]
)
def test_a_killed_fit_leaves_the_same_end(world, served, killed):
    one = world.router
    one.is_read.clear()
    one.mix = OTHER
    detected(world, status="True", reason="Fitting")
    killed(world, lambda: served("x-drift-1"))
    if killed is not after_its_report:
        assert world.active() == "x-bootstrap"
        assert world.routing["staged"] is None
    report = served("x-drift-1", attempt=2).finish()
    assert report["verdict"] == "Accepted", report["message"]
    ends_well(world, report)
    assert world.routing["active"] == report["set"]
    held = {found["metadata"]["name"] for found in config_maps(world, "x-drift-1")}
    assert {shard["name"] for shard in report["set"]["shards"]} <= held


@pytest.mark.costly
def test_routers_that_begin_anew_at_each_step_leave_the_same_end(world, served):
    """Their counts are gone, their log is on disk, no set is loaded."""
    one = world.router
    one.mix = OTHER
    detected(world, status="True", reason="Fitting")
    one.restart()
    run = served("x-drift-1")
    one.restart()
    one.is_holding = True
    report = run.finish()
    assert report["verdict"] == "Accepted", report["message"]
    world.until(lambda: world.routing["staged"], "staged")
    one.restart()
    world.until_active("x-drift-1")
    one.restart()
    ends_well(world, report)
