"""What runs and which centroids it uses are reconciled apart: neither waits for the other. In virtual time, on a simulated cluster.

The last tests are single orders of events in which ``test_chaos_simulated.py`` found a fault.
"""

from collections import Counter

from eldr_operator.errors import ApiUnavailableError
from tests.fakes.kubernetes.server import failing
from tests.operator.simulated.process import SimulatedRouter
from tests.operator.world import KIND

MOST = 21
"""Requests to the API server that a new deployment may cost."""


def unanswered(*kinds):
    return failing(ApiUnavailableError("no answer"), *kinds)


def image(world, role):
    return world.template(role)["spec"]["containers"][0]["image"]


def test_a_set_is_activated_while_a_child_cannot_be_written(it):
    it.operator.client.faults.append(unanswered("Deployment", "StatefulSet"))
    it.world.patch(engine={"image": "other:1"})
    it.world.fit("f", k=2)
    it.world.report("f")
    it.kube.until(lambda: (it.world.routing["active"] or {}).get("fit") == "f", "routers to be told")
    assert image(it.world, "decode") != "other:1"


def test_pods_are_replaced_while_nothing_of_centroids_can_be_written(it):
    it.operator.client.faults.append(unanswered("ConfigMap", "EldrFit", "Job"))
    it.world.fit("f", k=2)
    it.world.patch(engine={"image": "other:1"})
    it.kube.until(
        lambda: image(it.world, "decode") == image(it.world, "prefill") == "other:1", "pods to change"
    )


def test_routers_are_told_of_a_set_only_once_they_may_read_it(it):
    it.world.fit("f", k=2)
    it.world.until_fit("f", reason="Running")  # with rights of its own
    it.operator.client.faults.append(unanswered("Role"))
    it.world.report("f")
    it.world.until_fit("f", status="True")
    it.pass_(60)
    assert (it.world.routing["active"], it.world.routing["staged"]) == (None, None)
    it.operator.client.faults.clear()
    it.world.until_active("f")
    (rule,) = [each for each in it.kube.get("Role", "x-router")["rules"] if "configmaps" in each["resources"]]
    shard = it.world.routing["active"]["shards"][0]["name"]
    assert shard in rule["resourceNames"]


def test_the_status_is_made_of_looks_at_the_same_generation(it):
    """Else Ready would be True for a spec that no pod has yet."""
    it.operator.client.faults.append(unanswered("Deployment", "StatefulSet"))
    generation = it.world.patch(engine={"image": "other:1"})["metadata"]["generation"]
    for _ in range(60):
        it.pass_(0.5)
        ready = it.kube.condition(KIND, "x", "Ready")
        assert ready["observedGeneration"] < generation or ready["status"] != "True"
    it.operator.client.faults.clear()
    it.world.make_ready()


def test_a_fit_that_goes_while_a_watch_is_broken_keeps_no_other_waiting(it):
    it.world.fit("gone", k=2)
    it.world.until_fit("gone", reason="Running")
    with it.operator.blind():
        it.kube.delete("EldrFit", "gone")
        it.kube.until(lambda: not it.kube.find("Job", "gone"), "its Job to go")
    it.world.fit("next", k=2)
    it.world.until_fit("next", reason="Running", seconds=60)


def test_replicas_that_are_set_and_set_back_at_once_stay_with_who_set_them(it):
    for replicas in (3, 2):
        it.kube.merge("EldrScaler", "x-decode", {"spec": {"replicas": replicas}}, "scale")
    it.world.patch(decode={"replicas": 1})
    it.world.make_ready()
    assert it.world.status["decode"] == it.world.status["decode"] | {"desired": 2, "scaledBy": "kubectl"}


def test_a_router_that_was_not_asked_yet_is_not_called_unreachable(bare):
    class Hung(SimulatedRouter):
        def __init__(self, *args):
            super().__init__(*args)
            self.is_hung = True

    world, kube = bare.world, bare.kube
    world.router_kind = Hung
    world.deploy(centroids={"ackTimeoutSeconds": 1})

    def told():
        world.run_pods()
        for pod in kube.list("Pod", "eldr.dev/router"):  # something else has it looked at again
            annotations = {"example.com/at": str(bare.simulation.loop.time())}
            kube.merge("Pod", pod["metadata"]["name"], {"metadata": {"annotations": annotations}})
        found = kube.condition(KIND, "x", "CentroidsActive")
        return found if found.get("reason") == "RoutersUnreachable" else None

    assert "does not answer" in kube.until(told, "routers told to be out of reach")["message"]


def test_a_new_deployment_costs_few_requests(bare):
    bare.pass_(5)
    asked = Counter()
    bare.operator.client.faults.append(lambda one: asked.update(["/".join(one[:2] + one[4:])]))
    bare.world.deploy(decode={"replicas": 2})
    bare.world.condition("PrefillReady", reason="PodsNotReady")
    for _ in range(30):
        bare.controllers.step()
        bare.pass_(0.5)
    others = {what: count for what, count in asked.items() if "Lease" not in what}
    assert sum(others.values()) <= MOST, others
