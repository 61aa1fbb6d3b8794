"""How pods end: order, hooks, grace."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.processes import wait_for
from tests.support.space import STAY, Space, container, container_status, pod

pytestmark = pytest.mark.kube


def recorder(name: str, **more: object) -> dict:
    """A container that writes what happens to it into a file that outlives the pod."""
    script = f"trap 'sleep 0.2; echo {name} ended >> /record/log; exit 0' TERM; touch /record/{name}; "
    mount = [{"name": "record", "mountPath": "/record"}]
    return container(f"{script} while :; do sleep 0.05; done", name, volumeMounts=mount, **more)


def recorded(folder: Path) -> list[dict]:
    return [{"name": "record", "hostPath": {"path": str(folder)}}]


def test_containers_end_before_sidecars_in_reverse_order(space: Space, tmp_path: Path):
    sidecars = [recorder(name, restartPolicy="Always") for name in ("first", "second")]
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /record/log"]}}}
    main = recorder("main", lifecycle=hook)
    space.apply(
        pod(
            "order",
            main,
            initContainers=sidecars,
            volumes=recorded(tmp_path),
            terminationGracePeriodSeconds=30,
        )
    )
    started = [tmp_path / name for name in ("first", "second", "main")]
    space.wait_pod("order", lambda _: all(file.exists() for file in started), "its containers to run")
    space.kubectl("delete", "pod", "order", "--wait=false")
    space.wait_gone("order")
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [
        "hook",
        "main ended",
        "second ended",
        "first ended",
    ]


def test_a_program_that_is_told_to_end_while_it_starts_does(space: Space):
    command = ["eldr", "engine-sim", "--role=decode", "--port=8001"]
    main = {"name": "main", "image": "eldr:test", "command": command}
    space.apply(pod("early", main, terminationGracePeriodSeconds=300))
    space.wait_pod("early", lambda found: "running" in container_status(found)["state"], "it to start")
    time.sleep(0.4)  # the interpreter has begun, and imports
    space.kubectl("delete", "pod", "early", "--wait=false")
    space.wait_gone("early")


def test_grace_period_ends_what_ignores_sigterm(space: Space, tmp_path: Path):
    script = "trap '' TERM; touch /record/main; while :; do sleep 0.05; done"
    main = container(script, volumeMounts=[{"name": "record", "mountPath": "/record"}])
    space.apply(pod("stubborn", main, volumes=recorded(tmp_path), terminationGracePeriodSeconds=1))
    space.wait_pod("stubborn", lambda _: (tmp_path / "main").exists(), "its container to run")
    space.kubectl("delete", "pod", "stubborn", "--wait=false")
    space.wait_gone("stubborn")


def test_forced_deletion_kills_at_once(space: Space, tmp_path: Path):
    mount = [{"name": "record", "mountPath": "/record"}]
    script = "trap '' TERM; echo $$ > /record/pid; while :; do date +%s%N > /record/alive; sleep 0.05; done"
    space.apply(pod("forced", container(script, volumeMounts=mount), volumes=recorded(tmp_path)))
    space.wait_pod("forced", lambda _: (tmp_path / "alive").exists(), "its container to run")
    space.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    space.wait_gone("forced")
    stays_same(tmp_path / "alive")


def stays_same(file: Path) -> None:
    """Wait until a file that a process rewrites twenty times a second has rested for a second."""
    wait_for(lambda: time.time() - file.stat().st_mtime > 1, f"{file.name} to rest")


def test_replaced_pod_of_the_same_name_runs(space: Space):
    space.apply(pod("again", container(f"echo generation one; {STAY}")))
    space.wait_log("again", "generation one")
    space.kubectl("delete", "pod", "again")
    space.apply(pod("again", container(f"echo generation two; {STAY}")))
    assert space.wait_log("again", "generation two") == "generation two\n"
