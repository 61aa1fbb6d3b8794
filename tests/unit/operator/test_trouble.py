"""Why pods are not ready: what a container's end, a lost node and a failed pod say."""

from datetime import timedelta

import pytest

from eldr import contract
from eldr_operator import clock
from eldr_operator.workloads import trouble
from eldr_operator.workloads.failures import Failures
from tests.unit.operator.builders import NOW


def container(state, *, restarts=4, ready=False, **ended):
    return {
        "name": "engine",
        "restartCount": restarts,
        "ready": ready,
        "state": state,
        "lastState": {"terminated": ended} if ended else {},
    }


def pod(*containers, phase="Running", status=None, **metadata):
    head = {"name": "x-decode-1", "uid": "1", "labels": {contract.LABEL_ROLE: "decode"}, **metadata}
    told = {"phase": phase, "containerStatuses": list(containers), **(status or {})}
    return {"metadata": head, "spec": {"nodeName": "gpu-7"}, "status": told}


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
RUNNING = {"running": {}}


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        (container(BACK_OFF, exitCode=137, reason="OOMKilled"), "CrashLoop", "OOMKilled, exit code 137"),
        (
            container(BACK_OFF, exitCode=2, reason="Error", message="unrecognized\narguments: --typo"),
            "CrashLoop",
            "Error, exit code 2: unrecognized arguments: --typo",
        ),
        (container(RUNNING, exitCode=1, reason="Error"), "CrashLoop", "Error, exit code 1"),
        (container(RUNNING, exitCode=1, message=f"{contract.REFUSAL}no"), "EngineRefused", "no"),
        (container(BACK_OFF, exitCode=1, message=f"{contract.REFUSAL}no"), "EngineRefused", "no"),
        (container(BACK_OFF), "CrashLoop", "kubectl logs x-decode-1 -c engine --previous"),
        (container(RUNNING, ready=True, exitCode=1), None, ""),
        (container(RUNNING, restarts=1, exitCode=1), None, ""),
        (container(RUNNING, exitCode=0, reason="Completed"), None, ""),
    ],
    ids=str,
)
def test_why_a_container_ended(found, reason, words):
    condition = trouble.of_pod("DecodeReady", pod(found))
    assert (condition and condition.reason) == reason
    assert condition is None or words in condition.message


def test_last_words_are_cut_and_a_growing_delay_is_left_out():
    condition = trouble.of_pod("DecodeReady", pod(container(BACK_OFF, exitCode=1, message="a" * 5000)))
    assert "a" * 200 in condition.message
    assert "a" * 201 not in condition.message
    assert "back-off 10s" not in condition.message


def test_what_a_failed_pod_waited_for_is_no_trouble_of_those_that_live():
    waiting = container({"waiting": {"reason": "ImagePullBackOff"}})
    assert trouble.of_pods("DecodeReady", [pod(waiting, phase="Failed")], NOW) is None


def terminating(seconds, **metadata):
    at = clock.stamp(NOW - timedelta(seconds=seconds))
    return pod(deletionTimestamp=at, deletionGracePeriodSeconds=330, **metadata)


@pytest.mark.parametrize("seconds", [-300, 0, 4])
def test_a_pod_that_is_being_deleted_is_no_trouble_and_looked_at_again(seconds):
    assert trouble.of_pods("DecodeReady", [terminating(seconds)], NOW) is None
    (left,) = trouble.seconds_until_stuck([terminating(seconds)], NOW)
    later = NOW + timedelta(seconds=left)
    assert trouble.of_pods("DecodeReady", [terminating(seconds)], later) is not None


def test_a_pod_that_a_finalizer_holds_says_so():
    condition = trouble.of_pods("DecodeReady", [terminating(10, finalizers=["example.com/a"])], NOW)
    assert "finalizers example.com/a" in condition.message
    assert "taint" not in condition.message


def failed(uid, seconds=5, role="decode", **status):
    made = clock.stamp(NOW - timedelta(seconds=seconds))
    told = {"reason": "Evicted", "message": "The node was low on resource: memory", **status}
    labels = {contract.LABEL_ROLE: role}
    return pod(phase="Failed", status=told, uid=uid, labels=labels, creationTimestamp=made)


def test_failed_pods_are_counted_by_role_also_once_they_are_gone():
    known = Failures()
    pods = [failed("1", 9), failed("2", role="prefill"), failed("3")]
    told = known.of(("n", "x"), pods, NOW)
    assert told["decode"] == (
        "2 pods failed within 10 minutes, first pod x-decode-1: Evicted: The node was low on resource: memory"
    )
    assert told["prefill"].startswith("1 pod failed")
    assert known.of(("n", "x"), [], NOW + timedelta(minutes=5)) == told
    assert known.of(("n", "other"), [], NOW) == {}
    assert known.of(("n", "x"), pods, NOW + timedelta(minutes=11)) == {}, "they lie there, and are over"


def test_a_pod_that_fails_again_and_again_does_not_rewrite_the_status():
    known, seen = Failures(), []
    for number in range(1000):
        now = NOW + timedelta(seconds=number)
        seen.append(known.of(("n", "x"), [failed(str(number), -number)], now)["decode"])
    assert len({*seen}) == 11
    assert seen[-1].startswith("more than 10 pods failed")


def test_a_pod_whose_node_was_collected_says_what_its_condition_says():
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "gone"}
    gone = failed("1", conditions=[disrupted], reason=None, message=None)
    assert "DeletionByPodGC: gone" in Failures().of(("n", "x"), [gone], NOW)["decode"]
