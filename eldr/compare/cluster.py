"""The deployment under comparison: its resource, and what its routers and engines tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import httpx
import urllib3

from eldr import contract, routers
from eldr.compare.figures import FiguresError, Reading, Totals, of_engine, of_router
from eldr.kubeconfig import ApiServer, ClusterError, Object
from eldr.routers import RouterPod
from eldr.status.fields import inside, integer

_DECODE: Final = f"{contract.LABEL_ROLE}={contract.ROLE_DECODE}"
_KEPT_OUT: Final = (
    "where NetworkPolicies keep the API server from it, docs/reference/compare.md names two that let it in"
)


class Target:
    """One EldrDeployment in a cluster.

    Parameters
    ----------
    now : callable
        Seconds, of the clock that times readings.
    """

    def __init__(self, server: ApiServer, name: str, now: Callable[[], float]) -> None:
        self._server = server
        self._name = name
        self._now = now
        self._token: str | None = None

    def read(self) -> Object:
        """Return the resource."""
        return self._server.deployment(self._name)

    def patch(self, body: Object) -> None:
        """Change the resource; a ClusterError ``Conflict`` where somebody else did since it was read."""
        path = self._server.deployment_path(self._name)
        self._server.merge(path, f"{contract.KIND_DEPLOYMENT} {self._name}", body)

    def policies(self) -> dict[str, str]:
        """Return the policy that each router places by."""
        if self._token is None:
            self._token = routers.admin_token(self._server, self._name)
        policies = {}
        for pod in self._routers():
            with _reached(f"router {pod.name}"):
                state = json.loads(
                    b"".join(routers.read(self._server, pod, contract.PATH_STATE, self._token))
                )
            policies[pod.name] = str(state.get("policy")) if isinstance(state, dict) else "?"
        return policies

    def router_pages(self) -> list[str]:
        """Return the metrics of all routers."""
        return [self._page(pod, contract.PORT_ADMIN) for pod in self._routers()]

    def reading(self) -> Reading:
        """Return what routers and decode engines have counted, and when."""
        deployment = self.read()
        began = self._now()
        pods: dict[str, Totals] = {}
        for pod in routers.running(self._server, self._name, _DECODE):
            pods[f"engine {pod.name}"] = _totals(
                f"engine {pod.name}", of_engine, self._page(pod, contract.PORT_ENGINE)
            )
        for pod in self._routers():
            pods[f"router {pod.name}"] = _totals(
                f"router {pod.name}", of_router, self._page(pod, contract.PORT_ADMIN)
            )
        at = (began + self._now()) / 2
        return Reading(at, pods, integer(inside(deployment, "status", "router"), "epoch"))

    def _routers(self) -> list[RouterPod]:
        return routers.running(self._server, self._name)

    def _page(self, pod: RouterPod, port: int) -> str:
        status, said = routers.metrics(self._server, pod, port)
        if status != 200:
            reason = said if status is None else f"status {status}"
            raise ClusterError(
                "PodUnreachable",
                f"pod {pod.name} does not tell its metrics at port {port}: {reason}; {_KEPT_OUT}",
            )
        return said


def _totals(what: str, parse: Callable[[str], Totals], page: str) -> Totals:
    try:
        return parse(page)
    except FiguresError as error:
        raise ClusterError("NoFigures", f"{what}: {error}") from None


@contextmanager
def _reached(what: str) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, urllib3.exceptions.HTTPError, ValueError) as error:
        raise ClusterError(
            "PodUnreachable", f"{what}: {type(error).__name__}: {error}; {_KEPT_OUT}"
        ) from None
