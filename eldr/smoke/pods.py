"""The same completion by a router's pod: outside of the cluster's network no Service can be reached."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

from eldr import contract, routers
from eldr.addresses import authority
from eldr.kubeconfig import ApiServer
from eldr.smoke.choice import Target
from eldr.smoke.request import PATH, Answer, RequestError, ask, body, checked


def ask_router(
    server: ApiServer, target: Target, seconds: float, *, key: str | None, ca: Path | None
) -> tuple[Answer, str]:
    """Send a completion to a router, through the API server unless the pod is on this machine; return where it went too.

    The API server keeps the authorization header for itself and checks no certificate of pods.

    Raises
    ------
    RequestError
        As of :func:`eldr.smoke.request.ask`.
    ClusterError
        If the API server refuses.
    """
    pod = next(iter(routers.running(server, target.name)), None)
    if pod is None:
        raise RequestError(f"{target} has no pod with a router; see: kubectl get pods -n {target.namespace}")
    service = urlsplit(target.url)
    if routers.is_near(server, pod):
        url = f"{service.scheme}://{authority(pod.address, contract.PORT_ROUTER)}"
        return ask(url, target.model, seconds, key=key, ca=ca, host=service.hostname), url
    path = routers.proxied(server, pod.name, contract.PORT_ROUTER, PATH, service.scheme)
    where = f"pod {pod.name} through the API server"
    sent = time.monotonic()
    headers = {"x-api-key": key} if key else {}
    status, data = server.answer(
        path, method="POST", body=body(target.model), headers=headers, seconds=seconds
    )
    if status != 200 and (said := routers.of_api_server(data)):
        raise server.refused(status, where, data) if status == 403 else RequestError(f"{where}: {said}")
    return Answer(checked(where, status, data), time.monotonic() - sent), where
