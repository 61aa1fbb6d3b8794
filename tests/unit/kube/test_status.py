"""A pod's status from the states of its containers."""

from __future__ import annotations

import pytest

from eldr_kube.agent.state import ContainerState, container_state, terminated
from eldr_kube.agent.status import PodState, phase, pod_status

RUNNING = {"running": {"startedAt": "t"}}
WAITING = {"waiting": {"reason": "CrashLoopBackOff"}}


def ended(code: int) -> dict:
    return {"terminated": terminated(code, "Error" if code else "Completed", "", "t", "t")}


def state(current: dict, policy: str = "Always", *, ready: bool = False, init: str = "") -> ContainerState:
    spec = {"name": f"{init or 'main'}", "image": "i"}
    if init == "sidecar":
        spec["restartPolicy"] = "Always"
    made = container_state(policy, spec, init=bool(init))
    made.current, made.ready, made.started = current, ready, ready
    return made


def pod_of(*main: ContainerState, initial: tuple[ContainerState, ...] = (), **more: object) -> PodState:
    return PodState(initial, main, "127.1.2.3", "t0", **{"initialized": True, **more})


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (pod_of(state(RUNNING)), "Running"),
        (pod_of(state(ended(0))), "Running"),
        (pod_of(state(ended(0), "Never")), "Succeeded"),
        (pod_of(state(ended(1), "Never")), "Failed"),
        (pod_of(state(ended(1), "OnFailure")), "Running"),
        (pod_of(state(ended(0), "Never"), state(ended(2), "Never")), "Failed"),
        # A sidecar still has to end before a Job's pod is over.
        (pod_of(state(ended(0), "Never"), initial=(state(RUNNING, init="sidecar"),)), "Running"),
        (pod_of(state(ended(0), "Never"), initial=(state(ended(143), init="sidecar"),)), "Succeeded"),
        (pod_of(state(WAITING), initial=(state(RUNNING, init="init"),), initialized=False), "Pending"),
        (
            pod_of(state(WAITING), initial=(state(ended(1), "Never", init="init"),), initialized=False),
            "Failed",
        ),
        (pod_of(state(WAITING), initial=(state(ended(1), init="init"),), initialized=False), "Pending"),
        (pod_of(state(ended(0)), ending=True), "Succeeded"),
        (pod_of(state(ended(137)), ending=True), "Failed"),
        (pod_of(state(ended(0)), ending=True, failure=("DeadlineExceeded", "late")), "Failed"),
        (pod_of(state(WAITING), ending=True, initialized=False), "Failed"),
    ],
)
def test_phase(pod: PodState, expected: str):
    assert phase(pod) == expected


def condition(status: dict, kind: str) -> dict:
    (found,) = [item for item in status["conditions"] if item["type"] == kind]
    return found


def test_ready_needs_containers_and_sidecars():
    sidecar, main = state(RUNNING, init="sidecar"), state(RUNNING, ready=True)
    status = pod_status(pod_of(main, initial=(sidecar,)), {}, "now")
    assert condition(status, "Ready") == {
        "type": "Ready",
        "status": "False",
        "reason": "ContainersNotReady",
        "message": "containers with unready status: [sidecar]",
        "lastTransitionTime": "now",
    }
    sidecar.ready = True
    assert condition(pod_status(pod_of(main, initial=(sidecar,)), {}, "now"), "Ready")["status"] == "True"


def test_transition_times_move_only_with_the_status():
    main = state(RUNNING, ready=True)
    first = pod_status(pod_of(main), {}, "first")
    second = pod_status(pod_of(main), {"status": first}, "second")
    assert second == first
    main.ready = False
    third = pod_status(pod_of(main), {"status": first}, "third")
    assert condition(third, "Ready")["lastTransitionTime"] == "third"
    assert condition(third, "Initialized")["lastTransitionTime"] == "first"
