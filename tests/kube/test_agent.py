"""The agent as a process: several nodes, its death, machines without namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from eldr_kube.binaries import BinariesUnavailableError, binaries
from eldr_kube.cluster import Cluster
from tests.support.processes import wait_for
from tests.support.space import (
    STAY,
    Space,
    config_map,
    container,
    container_status,
    engine_like,
    is_ready,
    pod,
)

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A cluster whose agent these tests may kill."""
    try:
        binaries()
    except BinariesUnavailableError as error:
        pytest.skip(f"no control plane here: {error}")
    with Cluster(nodes=2, agent_options=("--backoff-seconds", "0.2")) as cluster:
        yield cluster


@pytest.fixture
def space(own: Cluster) -> Iterator[Space]:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    own.create_namespace(name)
    with Space(own, name) as opened:
        yield opened
    own.kubectl("delete", "namespace", name, "--wait=false")
    if own.agent.poll() is None:
        wait_for(lambda: not opened_pods(own, name), "pods to end")


def opened_pods(cluster: Cluster, namespace: str) -> str:
    return cluster.kubectl("-n", namespace, "get", "pods", "-o", "name")


def marked(mark: str) -> list[int]:
    """Processes of this machine that carry a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def test_pods_spread_over_nodes_with_gpus_and_addresses_of_their_own(space: Space):
    script = "exec python3 -m http.server --bind $(POD_IP) 8100"
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    main = container(script, env=env, resources={"limits": {"amd.com/gpu": 8}})
    main["readinessProbe"] = {"tcpSocket": {"port": 8100}, "periodSeconds": 1}
    space.apply(pod("one", main), pod("two", main), pod("three", main))
    wait_for(lambda: sum(is_ready(item) for item in space.pods()) == 2, "two ready pods")
    placed = [item for item in space.pods() if item["status"].get("podIP")]
    assert len({item["spec"]["nodeName"] for item in placed}) == 2
    assert len({item["status"]["podIP"] for item in placed}) == 2
    (waiting,) = [item for item in space.pods() if not item["spec"].get("nodeName")]
    assert "Insufficient amd.com/gpu" in json.dumps(waiting["status"])


def test_killed_agent_leaves_nothing_and_the_next_one_goes_on(space: Space):
    mark = uuid.uuid4().hex
    env = [{"name": "MARK", "value": mark}]
    volumes = [{"name": "scratch", "emptyDir": {}}]
    # A grandchild in a session of its own is what a death signal alone would miss.
    main = container(f"setsid sleep 1000 & {STAY}", env=env)
    main["volumeMounts"] = [{"name": "scratch", "mountPath": "/eldr-scratch"}]
    once = container(STAY, env=env)
    space.apply(pod("stays", main, volumes=volumes), pod("once", once, restartPolicy="Never"))
    space.wait_ready("stays")
    space.wait_ready("once")
    wait_for(lambda: len(marked(mark)) >= 3, "the grandchild")
    cluster = space.cluster
    port = kubelet_port(space)
    cluster.agent.send_signal(signal.SIGKILL)
    cluster.agent.wait()
    wait_for(lambda: not marked(mark), "every process to end with the agent")
    assert str(cluster.data) not in Path("/proc/self/mountinfo").read_text()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    cluster.start_agent()
    found = space.wait_pod(
        "stays", lambda p: container_status(p)["restartCount"] == 1 and is_ready(p), "a restart"
    )
    assert container_status(found)["lastState"]["terminated"]["exitCode"] == 137
    space.wait_pod("once", lambda p: p["status"]["phase"] == "Failed", "Failed: it must not run twice")
    cluster.stop_agent()
    wait_for(lambda: not marked(mark), "every process to end with the agent")
    assert not (cluster.data / "agent").exists()
    cluster.start_agent()


def kubelet_port(space: Space) -> int:
    node = space.get("/api/v1/nodes/local-0")
    assert node is not None
    return int(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"])


def test_without_namespaces_paths_are_replaced_and_the_node_says_so(space: Space):
    space.cluster.stop_agent()
    space.cluster.start_agent("--no-isolate")
    node = space.get("/api/v1/nodes/local-0")
    assert node is not None
    assert "forbids namespaces" in json.dumps(node["status"]["conditions"])
    mark = uuid.uuid4().hex
    env = [{"name": "MARK", "value": mark}, {"name": "FILE", "value": "/etc/eldr-config/value"}]
    main = container(f"cat /etc/eldr-config/value; cat $FILE; echo done; {STAY}", env=env)
    main["volumeMounts"] = [{"name": "config", "mountPath": "/etc/eldr-config"}]
    space.apply(
        config_map("c", value="shown\n"),
        pod("plain", main, volumes=[{"name": "config", "configMap": {"name": "c"}}]),
    )
    assert space.wait_log("plain", "done") == "shown\nshown\ndone\n"
    space.apply(engine_like("engine"))
    assert space.wait_log("engine", "done").startswith("plugin 42 shared 7 ")
    space.kubectl("delete", "pod", "engine")
    space.kubectl("delete", "pod", "plain")
    assert not marked(mark)
    space.cluster.stop_agent()
    space.cluster.start_agent()


def test_killed_cluster_leaves_nothing(tmp_path: Path):
    try:
        binaries()
    except BinariesUnavailableError as error:
        pytest.skip(f"no control plane here: {error}")
    mark = uuid.uuid4().hex
    output = tmp_path / "output"
    with output.open("wb") as file:
        command = [sys.executable, "-m", "eldr_kube", "up", "--data", str(tmp_path / "data")]
        parent = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "MARK": mark})
    try:
        wait_for(lambda: b"KUBECONFIG=" in output.read_bytes() or parent.poll(), "the cluster", 120)
        assert parent.poll() is None, output.read_text()
        # The command itself, etcd, three servers, the agent, its endpoint.
        assert len(marked(mark)) == 7
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not marked(mark), "every process to end with its parent")
