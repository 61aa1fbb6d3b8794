"""Probes, restarts and Jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import wait_for
from tests.support.space import STAY, Space, condition, container, container_status, is_ready, pod

pytestmark = pytest.mark.kube

SHARED = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
VOLUMES = [{"name": "shared", "emptyDir": {}}]


def test_readiness_follows_an_exec_probe_both_ways(space: Space, tmp_path: Path):
    probe = {
        "exec": {"command": ["test", "-e", "/shared/ready"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    volumes = [{"name": "shared", "hostPath": {"path": str(tmp_path)}}]
    space.apply(pod("flip", container(STAY, readinessProbe=probe, **SHARED), volumes=volumes))
    ready = tmp_path / "ready"
    space.wait_pod("flip", lambda p: "running" in container_status(p)["state"], "its container to run")
    ready.touch()
    space.wait_ready("flip")
    ready.unlink()
    found = space.wait_pod(
        "flip", lambda p: condition(p, "Ready").get("status") == "False", "not Ready again"
    )
    assert condition(found, "Ready")["reason"] == "ContainersNotReady"
    assert container_status(found)["restartCount"] == 0


def test_liveness_failure_restarts_the_container(space: Space):
    probe = {
        "exec": {"command": ["test", "!", "-e", "/shared/sick"]},
        "periodSeconds": 1,
        "failureThreshold": 2,
    }
    script = f"echo start >> /shared/starts; [ $(wc -l < /shared/starts) -gt 1 ] && rm -f /shared/sick || touch /shared/sick; {STAY}"
    space.apply(pod("liveness", container(script, livenessProbe=probe, **SHARED), volumes=VOLUMES))
    found = space.wait_pod(
        "liveness", lambda p: container_status(p)["restartCount"] == 1 and is_ready(p), "one restart"
    )
    assert container_status(found)["lastState"]["terminated"]["exitCode"] == 0

    def told() -> set[str]:
        events = space.get(f"/api/v1/namespaces/{space.name}/events")
        assert events is not None
        return {event["reason"] for event in events["items"]}

    wait_for(lambda: "Unhealthy" in told(), "the event", 60, told)


def test_crashes_back_off_and_keep_the_message(space: Space):
    script = "echo because > /dev/termination-log; echo log $(date +%N); exit 3"
    space.apply(pod("crash", container(script)))

    def backs_off(found: dict) -> bool:
        state = container_status(found)["state"]
        return state.get("waiting", {}).get("reason") == "CrashLoopBackOff"

    found = space.wait_pod("crash", backs_off, "CrashLoopBackOff")
    status = container_status(found)
    assert status["restartCount"] >= 1
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["lastState"]["terminated"]["message"].strip() == "because"
    assert found["status"]["phase"] == "Running"
    assert space.kubectl("logs", "crash", "--previous").startswith("log ")


def test_message_falls_back_to_the_log(space: Space):
    main = container("echo why it failed; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
    space.apply(pod("fallback", main, restartPolicy="Never"))
    found = space.wait_pod("fallback", lambda p: p["status"]["phase"] == "Failed", "Failed")
    assert container_status(found)["state"]["terminated"]["message"].strip() == "why it failed"


def test_command_that_does_not_exist_is_explained(space: Space):
    main = {"name": "main", "image": "busybox:1", "command": ["/no/such/program"]}
    space.apply(pod("missing", main, restartPolicy="Never"))
    found = space.wait_pod("missing", lambda p: p["status"]["phase"] == "Failed", "Failed")
    assert "/no/such/program" in container_status(found)["state"]["terminated"]["message"]


def job(name: str, main: dict, **spec: object) -> dict:
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [main], **spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": body}},
    }


def test_job_succeeds_and_its_sidecar_ends(space: Space):
    sidecar = container(STAY, "sidecar", restartPolicy="Always")
    space.apply(job("good", container("echo worked"), initContainers=[sidecar]))
    wait_for(lambda: (space.job("good") or {}).get("status", {}).get("succeeded") == 1, "the job")
    (found,) = space.pods("job-name=good")
    assert found["status"]["phase"] == "Succeeded"
    assert container_status(found, "sidecar")["state"]["terminated"]["exitCode"] == 0


def test_active_deadline_fails_the_pod(space: Space):
    space.apply(pod("late", container(STAY), activeDeadlineSeconds=4))
    found = space.wait_pod("late", lambda p: p["status"]["phase"] == "Failed", "Failed")
    assert found["status"]["reason"] == "DeadlineExceeded"
    assert container_status(found)["state"]["terminated"]["exitCode"] == 0
