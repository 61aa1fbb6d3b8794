"""An EldrDeployment as the caller's kubeconfig sees it: its settings, and what its routers have logged and learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import urllib3

from eldr import contract, routers
from eldr.kubeconfig import ApiServer, ClusterError

_RIGHTS = "reading a deployment's logs takes get of eldrdeployments, of the Secret <name>-admin and of pods/proxy, and list of pods"
_KEPT_OUT = "where a NetworkPolicy keeps this program or the API server from them, examples/network-policy.yaml lets it in"


class Deployment(NamedTuple):
    """A deployment.

    Attributes
    ----------
    states : tuple
        What each router that answered reports of itself; see :data:`eldr.contract.STATE_VERSION`.
    logs : tuple of Path
        Segments of routers' signature logs.
    notes : tuple of str
        Routers that were left out, and why.
    """

    resource: dict[str, Any]
    states: tuple[Any, ...]
    logs: tuple[Path, ...]
    notes: tuple[str, ...]


def read_deployment(
    name: str,
    folder: Path,
    context: str | None = None,
    namespace: str | None = None,
    kubeconfig: str | None = None,
) -> Deployment:
    """Read a deployment, its routers' states, and their logs into a folder.

    Raises
    ------
    ClusterError
        If something is missing, forbidden or out of reach; the message names the remedy.
    """
    server = ApiServer(context, namespace, kubeconfig, rights=_RIGHTS)
    resource = server.deployment(name)
    pods = routers.running(server, name)
    if not pods:
        raise ClusterError(
            "NoRouters",
            f"{contract.KIND_DEPLOYMENT} {name} in namespace {server.namespace} has no running router; wait until it is Available",
        )
    token = routers.admin_token(server, name)
    states: list[Any] = []
    logs: list[Path] = []
    notes: list[str] = []
    for pod in pods:
        log = folder / f"{len(logs)}.siglog"
        try:
            state = json.loads(b"".join(routers.read(server, pod, contract.PATH_STATE, token)))
            with log.open("wb") as file:
                file.writelines(routers.read(server, pod, contract.PATH_SIGLOG, token))
            states.append(state)
            logs.append(log)
        except (ClusterError, httpx.HTTPError, urllib3.exceptions.HTTPError, ValueError) as error:
            notes.append(f"router {pod.name} was left out: {str(error) or type(error).__name__}")
    if not logs:
        raise ClusterError("RoutersUnreachable", f"{'; '.join(notes)}; {_KEPT_OUT}")
    return Deployment(resource, tuple(states), tuple(logs), tuple(notes))
