"""kubectl logs, through the API server to the agent's port."""

from __future__ import annotations

import os
import subprocess

import httpx
import pytest

from tests.support.space import Space, container, pod

pytestmark = pytest.mark.kube


def test_follow_streams_and_ends_with_the_container(space: Space):
    script = "echo early; while [ ! -e /shared/go ]; do sleep 0.05; done; echo late"
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    starter = container(
        "while [ ! -e /shared/asked ]; do sleep 0.05; done; touch /shared/go", "starter", **mount
    )
    starter["command"][2] = "sleep 1; touch /shared/go"
    manifest = pod(
        "follow",
        container(script, **mount),
        starter,
        restartPolicy="Never",
        volumes=[{"name": "shared", "emptyDir": {}}],
    )
    space.apply(manifest)
    space.wait_log("follow", "early")
    cluster = space.cluster
    done = subprocess.run(
        [str(cluster.bin / "kubectl"), "-n", space.name, "logs", "-f", "follow", "-c", "main"],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "early\nlate\n"


def test_port_serves_nobody_but_the_api_server(space: Space):
    node = space.get("/api/v1/nodes")
    assert node is not None
    port = node["items"][0]["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        httpx.get(f"https://127.0.0.1:{port}/containerLogs/a/b/c", verify=False)
