"""Workloads that the controllers make and the node agent runs."""

from __future__ import annotations

import pytest

from tests.support.space import STAY, Space, config_map, container, container_status, pod

pytestmark = pytest.mark.kube


def test_sidecar_must_have_started_before_the_next_container(space: Space):
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    probe = {"exec": {"command": ["test", "-e", "/shared/started"]}, "periodSeconds": 1}
    script = f"sleep 0.5; touch /shared/started; {STAY}"
    sidecar = container(script, "sidecar", restartPolicy="Always", startupProbe=probe, **mount)
    main = container(f"test -e /shared/started && echo in order; {STAY}", **mount)
    space.apply(pod("sidecars", main, initContainers=[sidecar], volumes=[{"name": "shared", "emptyDir": {}}]))
    space.wait_log("sidecars", "in order")
    assert container_status(space.wait_ready("sidecars"), "sidecar")["started"]


def test_unmatched_image_waits_and_names_the_remedy(space: Space):
    space.apply(pod("unknown", {"name": "main", "image": "example.com/nothing:1"}))

    def refused(found: dict) -> bool:
        return container_status(found)["state"].get("waiting", {}).get("reason") == "ImagePullBackOff"

    found = space.wait_pod("unknown", refused, "ImagePullBackOff")
    message = container_status(found)["state"]["waiting"]["message"]
    assert "example.com/nothing:1" in message
    assert "image map" in message


def test_environment_is_a_container_s_and_not_the_agent_s(space: Space):
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"key": "hidden"},
    }
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "GREETING", "value": "hello $(NAME) $$(NAME) $(MISSING)"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    main = container(f"env; pwd; echo argument $(GREETING); echo done; {STAY}", env=env, workingDir="/usr")
    main["envFrom"] = [{"prefix": "P_", "configMapRef": {"name": "from"}}]
    main["resources"] = {"limits": {"cpu": "1500m"}}
    space.apply(secret, config_map("from", colour="red"), pod("environment", main))
    lines = space.wait_log("environment", "done").splitlines()
    assert "GREETING=hello environment $(NAME) $(MISSING)" in lines
    assert {"SECRET=hidden", "P_colour=red", "CPU=2", "/usr", "HOSTNAME=environment"} <= set(lines)
    assert any(line.startswith("KUBERNETES_SERVICE_HOST=127.0.0.1") for line in lines)
    names = {line.partition("=")[0] for line in lines}
    assert not names & {"KUBECONFIG", "PYTHONPATH", "VIRTUAL_ENV"}


def test_container_waits_for_a_config_map_that_it_needs(space: Space):
    env = [{"name": "V", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "v"}}}]
    space.apply(pod("patient", container(f"echo value $(V); {STAY}", env=env)))

    def complains(found: dict) -> bool:
        waiting = container_status(found)["state"].get("waiting", {})
        return waiting.get("reason") == "CreateContainerConfigError" and "later" in waiting["message"]

    space.wait_pod("patient", complains, "CreateContainerConfigError")
    space.apply(config_map("later", v="42"))
    space.wait_log("patient", "value 42")
