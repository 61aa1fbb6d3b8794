"""An EldrDeployment as the caller's kubeconfig sees it: its settings, and what its routers have logged and learned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import urllib3

from eldr import contract, routers
from eldr.kubeconfig import ApiServer, ClusterError
from eldr.routers import RouterPod

Object = dict[str, Any]

_RIGHTS = "reading a deployment's logs takes get of eldrdeployments, of the Secret <name>-admin and of pods/proxy, and list of pods"
_KEPT_OUT = "where a NetworkPolicy keeps this program or the API server from them, examples/network-policy.yaml lets it in"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment.

    Attributes
    ----------
    states : tuple of dict
        What each router that answered reports of itself; see :data:`eldr.contract.STATE_VERSION`.
    logs : tuple of Path
        The same routers' signature logs.
    notes : tuple of str
        Routers that were left out, and why.
    """

    namespace: str
    resource: Object
    states: tuple[Object, ...]
    logs: tuple[Path, ...]
    notes: tuple[str, ...]


class Cluster:
    """The API server that :class:`eldr.kubeconfig.ApiServer` finds with the same parameters; ClusterError where it finds none."""

    def __init__(
        self, context: str | None = None, namespace: str | None = None, kubeconfig: str | None = None
    ) -> None:
        self._server = ApiServer(context, namespace, kubeconfig, rights=_RIGHTS)
        self.namespace = self._server.namespace

    def find(self, name: str, folder: Path) -> Deployment:
        """Read a deployment, its routers' states, and their logs into a folder of each.

        Raises
        ------
        ClusterError
            If something is missing, forbidden or out of reach; the message names the remedy.
        """
        resource = self._server.deployment(name)
        pods = routers.running(self._server, name)
        if not pods:
            raise ClusterError(
                "NoRouters",
                f"{contract.KIND_DEPLOYMENT} {name} in namespace {self.namespace} has no running router; "
                "wait until it is Available",
            )
        token = routers.admin_token(self._server, name)
        states: list[Object] = []
        logs: list[Path] = []
        problems: dict[str, str] = {}
        for pod in pods:
            try:
                state = _object_of(b"".join(routers.read(self._server, pod, contract.PATH_STATE, token)))
                logs.append(self._download(pod, token, folder / pod.name))
                states.append(state)
            except ClusterError as error:
                problems[pod.name] = str(error)
            except (httpx.HTTPError, urllib3.exceptions.HTTPError, ValueError) as error:
                problems[pod.name] = f"{type(error).__name__}: {error}"
        notes = tuple(f"router {pod} was left out: {reason}" for pod, reason in problems.items())
        if not logs:
            raise ClusterError("RoutersUnreachable", f"{'; '.join(notes)}; {_KEPT_OUT}")
        return Deployment(self.namespace, resource, tuple(states), tuple(logs), notes)

    def _download(self, pod: RouterPod, token: str, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "000000000000.siglog").open("wb") as file:
            for data in routers.read(self._server, pod, contract.PATH_SIGLOG, token):
                file.write(data)
        return folder


def _object_of(state: bytes) -> Object:
    value = json.loads(state)
    if not isinstance(value, dict):
        raise ClusterError("ForeignState", "its state is no object; is it a router of this version?")
    return value
