"""The README's quickstart, command by command, as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from eldr import contract
from eldr_kube.cluster import Cluster
from eldr_kube.ports import free_port
from tests.support.blocks import ROOT, Block, blocks
from tests.support.kube import Kube, delete_crds
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

PORT = "8080"
"""Of the README, which another program of this machine may have: another one takes its place."""


def marked(mark: str) -> Block:
    (found,) = (block for block in blocks("sh") if block.page.name == "README.md" and block.mark == mark)
    return found


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """Remove what the quickstart installs."""
    yield cluster
    cluster.kubectl("delete", "eldr", "--all", "--wait=true", "--timeout=60s")
    cluster.helm("uninstall", "eldr", "-n", "eldr-system", "--wait", "--timeout", "60s")
    with Kube(cluster, "default") as kube:
        selector = contract.LABEL_DEPLOYMENT
        wait_for(lambda: not kube.list("Pod", selector), "all pods to be garbage-collected", 90)
    delete_crds(cluster)


def shell(cluster: Cluster, script: str) -> str:
    env = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{cluster.bin}:{os.environ['PATH']}",
        "HOME": str(cluster.data / "home"),
    }
    done = subprocess.run(
        # what it leaves in the background would keep the output open
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p)' EXIT\n{script}"],
        capture_output=True,
        text=True,
        env=env,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_it_ends_in_an_answer(clean):
    script = marked("run").text
    assert script.count(PORT) == 2, "the port is forwarded and asked"
    said = shell(clean, script.replace(PORT, str(free_port())))
    (answer,) = (line for line in said.splitlines() if line.startswith("{"))
    parsed, end = json.JSONDecoder().raw_decode(answer)  # curl ends it with no line break
    assert parsed["choices"][0]["message"]["content"]
    assert re.search(r"^ready +yes", said[said.index(answer) + end :], re.MULTILINE), said


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demo_runs():
    """`make test` stands in the same block, and is what runs this."""
    commands = [line for line in marked("run-all").text.splitlines() if not line.startswith("make test")]
    assert [line.split("#")[0].strip() for line in commands] == ["make demo"]
    done = subprocess.run(["bash", "-ec", commands[0]], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
