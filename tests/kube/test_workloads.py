"""Workloads that the controllers make and the node agent runs."""

from __future__ import annotations

import httpx
import pytest

from tests.support.processes import wait_for
from tests.support.space import STAY, Space, config_map, container, container_status, is_ready, pod

pytestmark = pytest.mark.kube

POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
SERVE = "cd {folder} && exec python3 -m http.server --bind $(POD_IP) {port}"


def server(name: str, folder: str, port: int, **more: object) -> dict:
    probe = {"httpGet": {"port": port, "path": "/"}, "periodSeconds": 1}
    script = SERVE.format(folder=folder, port=port)
    return container(script, name, env=[POD_IP], readinessProbe=probe, **more)


def template(app: str, **spec: object) -> dict:
    body = {"terminationGracePeriodSeconds": 1, **spec}
    return {"metadata": {"labels": {"app": app}}, "spec": body}


def test_deployment_and_statefulset_serve_on_their_own_addresses(space: Space):
    mounts = [{"name": "plugins", "mountPath": "/plugins"}]
    copy = container("echo copied > /plugins/index.html", "copy", volumeMounts=mounts)
    sidecar = server("router", "/etc/eldr", 8000, restartPolicy="Always")
    sidecar["volumeMounts"] = [{"name": "config", "mountPath": "/etc/eldr"}]
    engine = server("engine", "/plugins", 8100, volumeMounts=mounts)
    engine["resources"] = {"limits": {"amd.com/gpu": 1}}
    volumes = [{"name": "plugins", "emptyDir": {}}, {"name": "config", "configMap": {"name": "config"}}]
    prefill = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "prefill"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "prefill"}},
            "template": template(
                "prefill", initContainers=[copy, sidecar], containers=[engine], volumes=volumes
            ),
        },
    }
    decode = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "decode"},
        "spec": {
            "replicas": 2,
            "serviceName": "decode",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "decode"}},
            "template": template(
                "decode",
                nodeSelector={"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
                containers=[server("engine", "/usr", 8100)],
            ),
        },
    }
    space.apply(config_map("config", **{"index.html": "from a config map"}), prefill, decode)

    def all_ready() -> bool:
        pods = space.pods()
        return len(pods) == 4 and all(is_ready(item) for item in pods)

    wait_for(all_ready, "four ready pods", 60)
    found = space.pods("app=prefill")
    assert len({item["status"]["podIP"] for item in space.pods()}) == 4
    for item in found:
        address = item["status"]["podIP"]
        assert httpx.get(f"http://{address}:8000/").text == "from a config map"
        assert httpx.get(f"http://{address}:8100/").text == "copied\n"
    assert {item["metadata"]["name"] for item in space.pods("app=decode")} == {"decode-0", "decode-1"}
    space.kubectl("delete", "deployment/prefill", "statefulset/decode", "--wait=false")
    wait_for(lambda: not space.pods(), "pods to be gone", 60)


def test_init_containers_run_in_order_before_the_containers(space: Space):
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    first = container("sleep 0.3; echo first >> /shared/order", "first", **mount)
    second = container("echo second >> /shared/order", "second", **mount)
    main = container(f"echo main >> /shared/order; cat /shared/order; {STAY}", **mount)
    manifest = pod(
        "ordered", main, initContainers=[first, second], volumes=[{"name": "shared", "emptyDir": {}}]
    )
    space.apply(manifest)
    assert space.wait_log("ordered", "main") == "first\nsecond\nmain\n"
    status = container_status(space.wait_ready("ordered"), "first")
    assert status["state"]["terminated"]["reason"] == "Completed"
    assert status["ready"]


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
