"""What another release of the operator makes of the same spec, and when pods get it, on a real API server."""

from __future__ import annotations

import pytest

from eldr import contract
from eldr_operator.workloads import revisions
from tests.operator.world import KIND, World
from tests.support.kube import Kube
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

NEXT_OWN, NEXT_VLLM = "ghcr.io/eldr/eldr:next", "vllm/vllm-openai-rocm:next"
NEXT = f"""
from eldr_operator.workloads import images, pods
images.Images.__new__.__defaults__ = ({NEXT_VLLM!r},)
pods.OWN_REQUESTS["requests"]["cpu"] = "200m"
pods._IDENTITY.append({{"name": "NEW_IN_THIS_RELEASE", "value": "1"}})
"""
"""A release with other images, other requests and another variable in every pod."""
WORKLOADS = {"prefill": ("Deployment", "x-prefill"), "decode": ("StatefulSet", "x-decode")}


@pytest.fixture
def upgrade(operator):
    """Return a function that puts another release in the place of the operator."""

    def start():
        operator.stop()
        operator.start(release=NEXT, options=[f"--image={NEXT_OWN}"])

    yield start
    operator.stop()
    operator.start()


@pytest.fixture
def world(kube: Kube):
    made = World(kube)
    yield made
    made.close()


def deploy(world, **spec):
    """Create a deployment of vLLM engines; nobody runs its pods."""
    world.kube.create(KIND, {"name": "x"}, spec={"model": {"uri": "org/model"}, **spec})
    for kind, name in WORKLOADS.values():
        world.until(lambda k=kind, n=name: world.kube.find(k, n), name)
    world.condition("UpdateAvailable", status="False", reason="UpToDate")


def template(world, role):
    return world.kube.get(*WORKLOADS[role])["spec"]["template"]


def templates(world):
    return {role: template(world, role) for role in WORKLOADS}


def images(world, role):
    pod = template(world, role)["spec"]
    return {each["name"]: each["image"] for each in (*pod["initContainers"], *pod["containers"])}


def kept(world):
    """Return the deployment's revisions by role: their names, the oldest first."""
    found = world.kube.list(
        "ControllerRevision", f"{contract.LABEL_DEPLOYMENT}=x,{contract.LABEL_REVISION_OF}"
    )
    named = [
        (each["metadata"]["labels"][contract.LABEL_REVISION_OF], each["revision"], each["metadata"]["name"])
        for each in found
    ]
    return {role: [name for its, _, name in sorted(named) if its == role] for role in WORKLOADS}


def pods(world):
    """Return the uids of all pods, once there are as many as wanted: one to prefill, two to decode."""
    labels = f"{contract.LABEL_DEPLOYMENT}=x,{contract.LABEL_ROLE}"
    found = wait_for(lambda: len(now := world.kube.list("Pod", labels)) == 3 and now, "three pods")
    return {each["metadata"]["uid"] for each in found}


def until_passes(operator, more=3):
    before = operator.passes()
    wait_for(lambda: operator.passes() >= before + more, f"{more} passes", 60, operator.said)


def test_an_upgrade_of_the_operator_touches_no_pod(operator, world, upgrade):
    deploy(world)
    before, running = {role: world.kube.get(*where) for role, where in WORKLOADS.items()}, pods(world)
    first = kept(world)
    assert {role: len(names) for role, names in first.items()} == {"prefill": 1, "decode": 1}
    status = wait_for(lambda: world.status.get("decode", {}).get("revision") and world.status, "status")
    assert (status["prefill"]["revision"], status["decode"]["revision"]) == (
        first["prefill"][0],
        first["decode"][0],
    )
    upgrade()
    told = world.condition("UpdateAvailable", status="True", reason="NewerImages")
    assert NEXT_OWN in told["message"]
    assert NEXT_VLLM in told["message"]
    until_passes(operator)
    for role, where in WORKLOADS.items():
        found = world.kube.get(*where)
        assert found["spec"] == before[role]["spec"]
        assert found["metadata"]["generation"] == before[role]["metadata"]["generation"]
    assert pods(world) == running
    assert kept(world) == first


def test_a_change_of_one_role_rolls_that_role_with_the_images_that_run_and_back(operator, world, upgrade):
    deploy(world)
    before = templates(world)
    upgrade()
    world.patch(decode={"env": [{"name": "MINE", "value": "1"}]})
    wait_for(lambda: template(world, "decode") != before["decode"], "a new template")
    assert template(world, "prefill") == before["prefill"]
    assert images(world, "decode") == {
        each["name"]: each["image"]
        for key in ("initContainers", "containers")
        for each in before["decode"]["spec"][key]
    }
    variables = {each["name"] for each in template(world, "decode")["spec"]["containers"][0]["env"]}
    assert {"MINE", "NEW_IN_THIS_RELEASE"} <= variables
    assert len(kept(world)["decode"]) == 2
    world.patch(decode={"env": []})
    wait_for(lambda: template(world, "decode") == before["decode"], "what ran before")
    assert len(kept(world)["decode"]) == 2, "the revision before is used again"


def test_who_asks_for_it_gets_the_new_release_at_once_and_keeps_it(operator, world, upgrade):
    deploy(world)
    before = templates(world)
    upgrade()
    world.patch(update="Immediate")
    for role in WORKLOADS:
        wait_for(
            lambda role=role: (
                images(world, role) == {"eldr-plugin": NEXT_OWN, "engine": NEXT_VLLM}
                or ("router" in images(world, role) and images(world, role)["router"] == NEXT_OWN)
            ),
            f"{role} with new images",
            60,
            lambda role=role: images(world, role),
        )
        assert template(world, role) != before[role]
    world.condition("UpdateAvailable", status="False", reason="UpToDate")
    rolled, names = templates(world), kept(world)
    assert {role: len(found) for role, found in names.items()} == {"prefill": 2, "decode": 2}
    world.patch(update="Manual")
    until_passes(operator)
    assert templates(world) == rolled
    assert kept(world) == names


def test_a_window_that_is_not_open_waits(operator, world, upgrade):
    never = {"schedule": "0 0 29 2 *", "durationMinutes": 1}
    always = {"schedule": "* * * * *", "durationMinutes": 60}
    deploy(world, update="Window", refit={"drift": {"maintenanceWindow": never}})
    before = templates(world)
    upgrade()
    world.condition("UpdateAvailable", status="True")
    until_passes(operator)
    assert templates(world) == before
    world.patch(refit={"drift": {"maintenanceWindow": always}})
    wait_for(lambda: images(world, "decode")["engine"] == NEXT_VLLM, "the new engine")


def test_the_first_release_with_revisions_adopts_what_runs(operator, world, upgrade):
    """As with a deployment that a release before made: there is no revision, and workloads name none."""
    deploy(world)
    operator.stop()
    for names in kept(world).values():
        for name in names:
            world.kube.delete("ControllerRevision", name)
    for where in WORKLOADS.values():
        nothing = dict.fromkeys((revisions.ANNOTATION_REVISION, revisions.ANNOTATION_INPUTS))
        world.kube.merge(*where, {"metadata": {"annotations": nothing}})
    before, running = {role: world.kube.get(*where) for role, where in WORKLOADS.items()}, pods(world)
    operator.start()
    upgrade()
    world.condition("UpdateAvailable", status="True", reason="NewerImages")
    until_passes(operator)
    for role, where in WORKLOADS.items():
        assert world.kube.get(*where)["spec"] == before[role]["spec"]
    assert pods(world) == running
    assert {role: len(names) for role, names in kept(world).items()} == {"prefill": 1, "decode": 1}


def test_a_change_while_no_operator_ran_is_not_lost(operator, world):
    deploy(world)
    operator.stop()
    for names in kept(world).values():
        for name in names:
            world.kube.delete("ControllerRevision", name)
    world.patch(decode={"env": [{"name": "MINE", "value": "1"}]})
    operator.start()

    def has_mine():
        return "MINE" in {each["name"] for each in template(world, "decode")["spec"]["containers"][0]["env"]}

    world.until(has_mine, "the change")


def test_revisions_are_shown_and_old_ones_go(operator, world):
    deploy(world)
    for number in range(revisions.KEPT + 3):
        world.patch(decode={"env": [{"name": "N", "value": str(number)}]})

        def has_it(number=number):
            env = template(world, "decode")["spec"]["containers"][0]["env"]
            return {"name": "N", "value": str(number)} in env

        world.until(has_it, f"change {number}")
    wait_for(lambda: len(kept(world)["decode"]) == revisions.KEPT, "old ones to go", 60, lambda: kept(world))
    shown = world.kube.kubectl("get", "controllerrevisions", "-l", f"{contract.LABEL_REVISION_OF}=decode")
    assert "EldrDeployment".lower() in shown.lower()
    assert world.status["decode"]["revision"] in shown
