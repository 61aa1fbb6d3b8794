from dataclasses import replace
from datetime import timedelta

import pytest

from eldr_operator import activation, events
from eldr_operator.activation import Verdict
from eldr_operator.desired.routing import Table
from eldr_operator.errors import Problem
from eldr_operator.observe import Role, RouterPod, Trouble, ready_routers, role
from eldr_operator.router_view import RouterView
from eldr_operator.status import HISTORY, Observed, status

READY = Role(desired=2, ready=2, existing=2, is_current=True)


@pytest.fixture
def seen(make_cr, now):
    views = [RouterView(RouterPod("r0", "127.0.0.1", None), policy="JSQ")]
    decision = activation.decide(make_cr(), [], Table(), views, now)
    return Observed(
        prefill=READY,
        decode=READY,
        router=READY,
        routers=views,
        decision=decision,
        signatures=Verdict("True", "Reported", "they do"),
        refit={},
        problems=(),
        refused=(),
    )


def conditions(made):
    return {found["type"]: (found["status"], found["reason"]) for found in made["conditions"]}


PROBLEM = Problem("InvalidSchedule", "spec.refit.schedule", "x", "write five fields")


@pytest.mark.parametrize(
    ("change", "kind", "expected", "ready"),
    [
        ({}, "Available", ("True", "MinimumReplicasAvailable"), ("True", "AllReady")),
        ({"prefill": Role(2)}, "Available", ("False", "NoPrefillEngine"), ("False", "NoPrefillEngine")),
        ({"decode": Role(2)}, "Available", ("False", "NoDecodeEngine"), ("False", "NoDecodeEngine")),
        ({"routers": []}, "Available", ("False", "NoRouter"), ("False", "NoRouter")),
        (
            {"decode": replace(READY, ready=1)},
            "DecodeReady",
            ("False", "PodsNotReady"),
            ("False", "PodsNotReady"),
        ),
        (
            {"decode": replace(READY, ready=1, trouble=Trouble("ImagePull", "pod"))},
            "DecodeReady",
            ("False", "ImagePull"),
            ("False", "ImagePull"),
        ),
        (
            {"prefill": replace(READY, is_current=False)},
            "PrefillReady",
            ("False", "RolloutInProgress"),
            ("False", "RolloutInProgress"),
        ),
        ({"problems": [PROBLEM]}, "ConfigValid", ("False", "InvalidSchedule"), ("False", "InvalidSchedule")),
        ({"refused": ["Service x: no"]}, "ConfigValid", ("False", "ChildRefused"), ("False", "ChildRefused")),
    ],
)
def test_conditions(make_cr, seen, now, change, kind, expected, ready):
    found = conditions(status(make_cr(), replace(seen, **change), now))
    assert found[kind] == expected
    assert found["Ready"] == ready
    assert list(found) == [
        *(
            "Ready",
            "Available",
            "PrefillReady",
            "DecodeReady",
            "RouterReady",
            "ConfigValid",
            "CentroidsActive",
            "SignaturesReported",
        )
    ]


def test_nothing_observed_anew_is_nothing_written_anew(make_cr, seen, now):
    first = status(make_cr(), seen, now)
    assert status(make_cr(first), seen, now + timedelta(hours=1)) == first


def test_transition_times_move_only_when_status_flips(make_cr, seen, now):
    first = status(make_cr(), seen, now)
    later = now + timedelta(hours=1)
    second = status(make_cr(first), replace(seen, decode=replace(READY, ready=1)), later)
    times = {found["type"]: found["lastTransitionTime"] for found in second["conditions"]}
    assert times["DecodeReady"] == times["Ready"] == "2026-11-21T13:00:00Z"
    assert times["PrefillReady"] == times["Available"] == "2026-11-21T12:00:00Z"


def test_history_grows_with_the_epoch_and_is_bounded(make_cr, make_set, seen, now):
    live = {}
    for epoch in range(1, HISTORY + 3):
        table = Table(epoch=epoch, active=make_set(f"f{epoch}"), activated_at=now, reason="Accepted")
        observed = replace(seen, decision=replace(seen.decision, table=table))
        live = status(make_cr(live), observed, now)
        assert status(make_cr(live), observed, now) == live
    assert [entry["epoch"] for entry in live["history"]] == list(range(3, HISTORY + 3))


def test_events_only_for_changes(make_cr, make_set, seen, now):
    first = status(make_cr(), seen, now)
    assert [event.reason for event in events.of_deployment({}, first)] == ["Ready"]
    assert events.of_deployment(first, first) == []
    table = Table(epoch=1, active=make_set("f"), activated_at=now, reason="Accepted")
    second = status(make_cr(first), replace(seen, decision=replace(seen.decision, table=table)), now)
    (activated,) = events.of_deployment(first, second)
    assert (activated.reason, activated.message) == (
        "CentroidsActivated",
        "epoch 1: routers use the set of EldrFit f (Accepted)",
    )
    lost = replace(seen, signatures=Verdict("False", "Missing", "all of them"))
    (warning,) = events.of_deployment(first, status(make_cr(first), lost, now))
    assert (warning.type, warning.reason) == ("Warning", "SignaturesMissing")
    down = status(make_cr(second), replace(seen, routers=[], problems=[PROBLEM]), now)
    assert {event.reason for event in events.of_deployment(second, down)} == {"NoRouter", "InvalidSchedule"}


def workload(generation=1, observed=1, **counts):
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": observed, **counts}}


@pytest.mark.parametrize(
    ("live", "ready"),
    [
        (None, False),
        (workload(replicas=2, readyReplicas=2, updatedReplicas=2), True),
        (workload(2, 1, replicas=2, readyReplicas=2, updatedReplicas=2), False),
        (workload(replicas=3, readyReplicas=3, updatedReplicas=2), False),
        (workload(replicas=2, readyReplicas=2, updatedReplicas=1), False),
        (workload(replicas=2, readyReplicas=1, updatedReplicas=2), False),
    ],
)
def test_role_readiness(live, ready):
    assert role(live, 2, []).is_ready is ready


def pod(name="p", *, labels=None, ready=True, key="initContainerStatuses", deleting=False, **status_):
    container = {
        "name": "router",
        "ready": ready,
        "state": {"running": {"startedAt": "2026-11-21T11:00:00Z"}},
    }
    metadata = {"name": name, "labels": labels or {"eldr.dev/router": "true"}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-21T11:30:00Z"
    return {"metadata": metadata, "status": {"podIP": "10.0.0.1", key: [container]} | status_}


def test_ready_routers():
    pods = [
        pod("b"),
        pod("a", key="containerStatuses"),
        pod("c", ready=False),
        pod("d", deleting=True),
        pod("e", podIP=""),
        pod("f", labels={"eldr.dev/role": "decode"}),
    ]
    assert [found.name for found in ready_routers(pods)] == ["a", "b"]


def test_troubles_are_stable():
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}
    crashed = pod("p", containerStatuses=[{"name": "engine", "state": waiting}])
    assert role(workload(), 1, [crashed]).trouble == Trouble(
        "CrashLoop", "container engine of pod p: CrashLoopBackOff; see kubectl describe pod p"
    )
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes",
    }
    assert role(workload(), 1, [pod(conditions=[unschedulable])]).trouble == Trouble(
        "InsufficientCapacity", "pod p: 0/3 nodes"
    )
    failing = {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}
    assert role(workload(conditions=[failing]), 1, []).trouble == Trouble(
        "PodsRefused", "violates PodSecurity"
    )
