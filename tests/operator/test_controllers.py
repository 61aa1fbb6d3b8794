"""What runs and which centroids it uses are reconciled apart: neither waits for the other. In virtual time, on a simulated cluster.

The last tests are single orders of events in which ``test_chaos_simulated.py`` found a fault.
"""

import pytest

from eldr_operator.errors import ApiUnavailableError
from tests.fakes.kubernetes.server import failing
from tests.fakes.kubernetes.simulation import SimulatedKube, Simulation
from tests.operator.simulated.process import SimulatedOperator, SimulatedRouter
from tests.operator.world import KIND, World


@pytest.fixture
def simulation():
    made = Simulation(1)
    yield made
    made.close()


@pytest.fixture
def operator(simulation):
    made = SimulatedOperator(simulation)
    made.start()
    return made


@pytest.fixture
def world(simulation, operator):
    made = World(SimulatedKube(simulation, "n"))
    made.router_kind = SimulatedRouter
    made.up()
    return made


def unanswered(*kinds):
    return failing(ApiUnavailableError("no answer"), *kinds)


def image(world, role):
    found = world.kube.get("Deployment" if role == "prefill" else "StatefulSet", f"x-{role}")
    return found["spec"]["template"]["spec"]["containers"][0]["image"]


def test_a_set_is_activated_while_a_child_cannot_be_written(world, operator):
    operator.client.faults.append(unanswered("Deployment", "StatefulSet"))
    world.patch(engine={"image": "other:1"})
    world.fit("f", k=2)
    world.report("f")
    world.kube.until(lambda: (world.routing["active"] or {}).get("fit") == "f", "routers to be told")
    assert image(world, "decode") != "other:1"


def test_pods_are_replaced_while_nothing_of_centroids_can_be_written(world, operator):
    operator.client.faults.append(unanswered("ConfigMap", "EldrFit", "Job"))
    world.fit("f", k=2)
    world.patch(engine={"image": "other:1"})
    world.kube.until(lambda: image(world, "decode") == image(world, "prefill") == "other:1", "pods to change")


def test_routers_are_told_of_a_set_only_once_they_may_read_it(world, operator):
    world.fit("f", k=2)
    world.kube.until_condition("EldrFit", "f", "Succeeded", reason="Running")  # with rights of its own
    operator.client.faults.append(unanswered("Role"))
    world.report("f")
    world.kube.until_condition("EldrFit", "f", "Succeeded", status="True")
    world.kube.simulation.pass_(60)
    assert (world.routing["active"], world.routing["staged"]) == (None, None)
    operator.client.faults.clear()
    world.until_active("f")
    (rule,) = [
        each for each in world.kube.get("Role", "x-router")["rules"] if "configmaps" in each["resources"]
    ]
    shard = world.routing["active"]["shards"][0]["name"]
    assert shard in rule["resourceNames"]


def test_the_status_is_made_of_looks_at_the_same_generation(world, simulation, operator):
    """Else Ready would be True for a spec that no pod has yet."""
    operator.client.faults.append(unanswered("Deployment", "StatefulSet"))
    generation = world.patch(engine={"image": "other:1"})["metadata"]["generation"]
    for _ in range(60):
        simulation.pass_(0.5)
        ready = world.kube.condition(KIND, "x", "Ready")
        assert ready["observedGeneration"] < generation or ready["status"] != "True"
    operator.client.faults.clear()
    world.make_ready()


def test_a_fit_that_goes_while_a_watch_is_broken_keeps_no_other_waiting(world, operator):
    world.fit("gone", k=2)
    world.kube.until_condition("EldrFit", "gone", "Succeeded", reason="Running")
    with operator.blind():
        world.kube.delete("EldrFit", "gone")
        world.kube.until(lambda: not world.kube.find("Job", "gone"), "its Job to go")
    world.fit("next", k=2)
    world.kube.until_condition("EldrFit", "next", "Succeeded", reason="Running", seconds=60)


def test_replicas_that_are_set_and_set_back_at_once_stay_with_who_set_them(world):
    for replicas in (3, 2):
        world.kube.merge("EldrScaler", "x-decode", {"spec": {"replicas": replicas}}, "scale")
    world.patch(decode={"replicas": 1})
    world.make_ready()
    assert world.status["decode"] == world.status["decode"] | {"desired": 2, "scaledBy": "kubectl"}


def test_a_router_that_was_not_asked_yet_is_not_called_unreachable(simulation, operator):
    class Hung(SimulatedRouter):
        def __init__(self, *args):
            super().__init__(*args)
            self.is_hung = True

    world = World(SimulatedKube(simulation, "n"))
    world.router_kind = Hung
    world.deploy(centroids={"ackTimeoutSeconds": 1})

    def told():
        world.run_pods()
        for pod in world.kube.list("Pod", "eldr.dev/router"):  # something else has it looked at again
            annotations = {"example.com/at": str(simulation.loop.time())}
            world.kube.merge("Pod", pod["metadata"]["name"], {"metadata": {"annotations": annotations}})
        found = world.kube.condition(KIND, "x", "CentroidsActive")
        return found if found.get("reason") == "RoutersUnreachable" else None

    assert "does not answer" in world.kube.until(told, "routers told to be out of reach")["message"]
