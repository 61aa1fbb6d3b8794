"""What a failed demo or test leaves behind: containers' logs, events and objects."""

from __future__ import annotations

import json
from pathlib import Path

from eldr_kube.cluster import Cluster, CommandError

_SHOWN = 15


def keep(cluster: Cluster, folder: Path) -> str:
    """Write all of it to a folder, and return what to say: where it is, and each log's last lines.

    Parameters
    ----------
    cluster : Cluster
        Where its API server does not answer, nothing is kept.
    folder : Path
        Created if missing.
    """
    try:
        containers = _containers(cluster)
    except CommandError as error:  # what was kept before it went stays
        return f"nothing of the cluster is kept: {error}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in {
        "events.txt": ("events", "--sort-by=.lastTimestamp"),
        "eldr.yaml": ("eldr,ef", "-o", "yaml"),
        "workloads.yaml": ("pods,jobs,deployments,statefulsets,configmaps", "-o", "yaml"),
    }.items():
        (folder / name).write_text(_ask(cluster, "get", "-A", *arguments))
    said = [
        f"kept in {folder}: events.txt, eldr.yaml, workloads.yaml, and the logs of all containers; their last lines:"
    ]
    for namespace, pod, container in containers:
        text = _ask(cluster, "-n", namespace, "logs", pod, "-c", container)
        path = folder / f"{namespace}.{pod}.{container}.log"
        path.write_text(text)
        said += [f"--- {path}", *text.splitlines()[-_SHOWN:]]
    return "\n".join(said)


def _containers(cluster: Cluster) -> list[tuple[str, str, str]]:
    pods = json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json") or '{"items": []}')["items"]
    return [
        (pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"])
        for pod in pods
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    ]


def _ask(cluster: Cluster, *arguments: str) -> str:
    """Return what kubectl prints, or why it does not."""
    try:
        return cluster.kubectl(*arguments)
    except CommandError as error:
        return f"kubectl {' '.join(arguments)}: {error}\n"
