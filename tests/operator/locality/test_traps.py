"""Situations in which the part that serves locality once stopped without a word."""

from __future__ import annotations

import pytest

from eldr import contract
from tests.operator.conftest import ACCOUNT, SYSTEM
from tests.operator.world import FIT, KIND, World
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube


@pytest.mark.parametrize("refit", [{"schedule": ""}, {"suspend": "Enabled"}])
def test_a_schedule_that_ends_before_any_fit_leaves_a_living_status(world, refit):
    world.up(refit={"schedule": "0 3 * * *"})
    wait_for(lambda: "nextScheduleTime" in world.status.get("refit", {}), "the schedule")
    world.patch(refit=refit)
    world.until_current()
    assert "refit" not in world.status


def test_a_first_set_given_up_while_staged_leaves_a_living_status(world):
    world.up()
    world.router.is_holding = True
    world.fit("one")
    world.report("one")

    def staged() -> str | None:
        return (world.status.get("centroids", {}).get("staged") or {}).get("fit")

    world.until(lambda: staged() == "one", "staged")
    world.patch(decode={"replicas": 3})
    world.until(lambda: "centroids" not in world.status, "nothing staged")
    world.until_current()


def test_a_lost_routing_table_is_made_anew_and_goes_on_counting(world):
    world.up()
    world.serve("one")
    world.kube.delete(FIT, "one")
    wait_for(lambda: world.remade_routing()["active"] is None, "a table without a set")
    world.until(lambda: "centroids" not in world.status, "no set is known any more")
    world.serve("two")
    assert world.routing["epoch"] == 3, "the table without a set had one of its own"


def test_a_recreated_deployment_takes_no_sets_of_the_earlier(world):
    world.up()
    world.serve("one")
    world.kube.delete(KIND, "x")
    # The collector may take its time: meanwhile the fit looks as it did.
    world.deploy(model={"uri": "org/other"})
    world.make_ready()
    wait_for(lambda: world.kube.find(FIT, "one") is None, "the earlier fit collected", 90)
    wait_for(lambda: world.active() is None, "no set of the earlier", show=lambda: world.status)
    assert world.status.get("history", []) == []
    world.serve("two")
    assert world.kube.get(FIT, "two")["status"]["model"] == "org/other"


def test_scaled_before_the_first_set_was_active(world):
    world.up(refit={"minSamples": 10})
    world.router.samples, world.router.is_holding = 10, True
    world.report("x-bootstrap")
    wait_for(lambda: world.status.get("centroids", {}).get("staged"), "staged")
    world.patch(decode={"replicas": 3})
    world.router.is_holding = False
    world.serve("three", k=3)


def test_a_set_that_a_new_router_cannot_load_is_made_anew(world):
    world.up(refit={"minSamples": 10})
    world.router.samples = 10
    digest = world.report("x-bootstrap")
    world.until_active("x-bootstrap")
    world.router.refuse[digest] = "ConfigMap x-bootstrap-0 is gone"
    world.condition("CentroidsActive", status="False", reason="Refused")
    world.report("x-repair")
    world.until_active("x-repair")
    assert world.kube.get(FIT, "x-repair")["spec"]["trigger"] == "Repair"
    world.condition("CentroidsActive", status="True", reason="Active")


def test_a_new_set_that_all_routers_refuse_is_given_up_and_the_next_one_follows(world):
    world.up(refit={"minSamples": 10, "drift": {"mode": "Disabled"}}, centroids={"ackTimeoutSeconds": 3})
    world.router.refuse["sha256:" + b"x-bootstrap".hex().ljust(64, "0")] = "shape differs"
    world.router.samples = 10
    world.report("x-bootstrap")
    condition = world.kube.until_condition(
        FIT, "x-bootstrap", "Blocked", seconds=60, status="True", reason="Refused"
    )
    assert "no router can load it" in condition["message"]
    assert "shape differs" in condition["message"]
    wait_for(lambda: world.routing["staged"] is None, "nothing staged")
    condition = world.condition("CentroidsActive", status="False", reason="LearnedPrior")
    assert "EldrFit x-bootstrap ended Refused" in condition["message"]
    world.serve("next")
    world.router.refuse["sha256:" + b"bad".hex().ljust(64, "0")] = "shape differs"
    world.fit("bad")
    world.report("bad")
    world.kube.until_condition(FIT, "bad", "Blocked", seconds=60, status="True", reason="Refused")
    world.condition("CentroidsActive", status="True", reason="Active")
    assert (world.active(), world.routing["epoch"], world.routing["staged"]) == ("next", 1, None)


def test_routers_out_of_reach_are_told_of(world):
    world.up(centroids={"ackTimeoutSeconds": 1})
    world.router.is_deaf = True
    condition = world.condition("CentroidsActive", status="Unknown", reason="RoutersUnreachable")
    assert "answers 503" in condition["message"]
    assert "port 9100" in condition["message"]
    world.until_told("CentroidsRoutersUnreachable")
    world.router.is_deaf = False
    world.condition("CentroidsActive", status="False", reason="LearnedPrior")


def give_another_token(world):
    """Let routers have a token that is not the operator's, as after another release, or another key."""
    world.up(centroids={"ackTimeoutSeconds": 1})
    name = contract.admin_secret_name("x")
    world.kube.merge("Secret", name, {"stringData": {contract.SECRET_TOKEN_KEY: "drawn"}})
    return world.condition("CentroidsActive", status="Unknown", reason="RouterTokenRefused")["message"]


def test_routers_with_another_token_are_asked_again_once_their_secret_is_deleted_and_restart_no_pod(world):
    message = give_another_token(world)
    assert f"kubectl delete secret x-admin -n {world.kube.namespace}" in message
    pods = {pod["metadata"]["uid"] for pod in world.kube.list("Pod")}
    world.kube.delete("Secret", "x-admin")
    world.condition("CentroidsActive", status="False", reason="LearnedPrior")
    assert pods == {pod["metadata"]["uid"] for pod in world.kube.list("Pod")}


@pytest.mark.costly
@pytest.mark.timeout(600)
def test_routers_with_another_token_are_asked_once_their_secret_may_be_read(world):
    assert "rbac.readSecrets" in give_another_token(world)
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    world.kube.create("Role", {"name": "read-secrets"}, rules=rules)
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "read-secrets"}
    world.kube.create("RoleBinding", {"name": "read-secrets"}, roleRef=role, subjects=[account])
    world.condition("CentroidsActive", seconds=150, status="False", reason="LearnedPrior")


def test_a_fit_of_another_deployment_with_our_name_is_gone_round(operator, world):
    other = World(world.kube, "y")
    world.fit("x-bootstrap")  # while x does not exist
    world.kube.delete(FIT, "x-bootstrap")
    other.fit("x-bootstrap")
    try:
        world.up(refit={"minSamples": 10})
        world.router.samples = 10
        world.until_fit("x-bootstrap-2", reason="Running")
        before = operator.passes()
        wait_for(lambda: operator.passes() >= before + 3, "some passes")
        mark, passes = operator.audit_size(), operator.passes()
        wait_for(lambda: operator.passes() >= passes + 3, "some more passes")
        own = [e for e in operator.requests(mark) if e["objectRef"].get("namespace") == world.kube.namespace]
        assert [entry["requestURI"] for entry in own if entry["verb"] in {"create", "patch"}] == []
    finally:
        other.close()
