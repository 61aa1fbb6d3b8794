"""Routers of an EldrDeployment, as the caller's kubeconfig leads to them."""

from __future__ import annotations

import base64
import ipaddress
import json
import ssl
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import urllib3

from eldr import admin_tls, contract
from eldr.addresses import authority
from eldr.kubeconfig import ApiServer, ClusterError, foreign

_DIRECT = httpx.Timeout(60.0, connect=5.0)
_CHUNK = 1 << 18
_ROUTERS = f"{contract.LABEL_ROUTER}=true"


class RouterPod(NamedTuple):
    """A running pod with a router in it.

    ``deployment`` owns it, and ``is_secure`` is whether its admin port speaks TLS.
    """

    name: str
    address: str
    deployment: str = ""
    is_secure: bool = False


class Answer(NamedTuple):
    """What came back for a request; ``status`` is None where the router did not answer, and ``said`` gives the reason."""

    status: int | None
    said: str


def running(server: ApiServer, deployment: str, labels: str = _ROUTERS) -> list[RouterPod]:
    """Return the pods of a deployment that may answer: those with a router, or with other labels."""
    selector = f"{contract.LABEL_DEPLOYMENT}={deployment},{labels}"
    path, what = f"/api/v1/namespaces/{server.namespace}/pods", "its pods"
    pods = server.read(path, what, [("labelSelector", selector)]).get("items")
    if not isinstance(pods, list):
        raise foreign(what, "a list in items")
    try:
        return [
            RouterPod(pod["metadata"]["name"], pod["status"]["podIP"], deployment, admin_tls.is_secure(pod))
            for pod in pods
            if pod["status"].get("podIP")
            and pod["status"].get("phase") not in contract.ENDED_PHASES
            and not pod["metadata"].get("deletionTimestamp")
        ]
    except (KeyError, TypeError, AttributeError):
        raise foreign(what, "pods in items") from None


def admin_token(server: ApiServer, deployment: str) -> str:
    """Return the token of the admin ports."""
    name = contract.admin_secret_name(deployment)
    secret = server.read(f"/api/v1/namespaces/{server.namespace}/secrets/{name}", f"Secret {name}")
    try:
        return base64.b64decode(secret["data"][contract.SECRET_TOKEN_KEY], validate=True).decode("ascii")
    except (KeyError, TypeError, ValueError):
        raise ClusterError(
            "NoToken", f"Secret {name} holds no {contract.SECRET_TOKEN_KEY}; the operator makes it again"
        ) from None


def read(server: ApiServer, pod: RouterPod, path: str, token: str) -> Iterator[bytes]:
    """Yield what a router's admin port answers, straight from the pod where that is sure to be the pod."""
    if is_near(server, pod):
        yield from _direct(server, pod, path, token)
        return
    headers = {contract.HEADER_ADMIN_TOKEN: token}
    where = proxied(server, pod.name, contract.PORT_ADMIN, path, _scheme(pod))
    answer = server.get(where, f"router {pod.name}", headers=headers)
    with answer:
        yield from answer.stream(_CHUNK)


def metrics(server: ApiServer, pod: RouterPod, port: int) -> Answer:
    """Return the metrics at a port of a pod, as :func:`ask` does."""
    return ask(
        server, pod, port, contract.PATH_METRICS, _scheme(pod) if port == contract.PORT_ADMIN else "http"
    )


def ask(server: ApiServer, pod: RouterPod, port: int, path: str, scheme: str = "http") -> Answer:
    """Return what a pod answers, whatever it is; a ClusterError ``Forbidden`` where the caller may not ask.

    By ``https`` no certificate is checked: none is made for a pod's address, and nothing secret is sent.
    """
    if is_near(server, pod):
        try:
            url = _url(pod, port, path, scheme)
            response = httpx.get(url, timeout=_DIRECT, trust_env=False, verify=False)  # noqa: S501 - see above
        except httpx.HTTPError as error:
            return Answer(None, f"{type(error).__name__}: {error}")
        return Answer(response.status_code, response.text)
    try:
        status, body = server.answer(proxied(server, pod.name, port, path, scheme))
    except urllib3.exceptions.HTTPError as error:
        return Answer(None, f"{type(error).__name__}: {error}")
    said = body.decode(errors="replace")
    if status == 200 or not (message := of_api_server(body)):
        return Answer(status, said)
    if status == 403:
        raise ClusterError("Forbidden", message)
    return Answer(None, message)


def proxied(server: ApiServer, pod: str, port: int, path: str, scheme: str = "http") -> str:
    """Return the path by which the API server leads to a pod's port."""
    named = f"{pod}:{port}" if scheme == "http" else f"{scheme}:{pod}:{port}"
    return f"/api/v1/namespaces/{server.namespace}/pods/{named}/proxy{path}"


def of_api_server(body: bytes) -> str:
    """Return the API server's own message; empty where the pod answered."""
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    is_its = isinstance(value, dict) and value.get("kind") == "Status"
    return str(value.get("message") or "no message") if is_its else ""


def is_near(server: ApiServer, pod: RouterPod) -> bool:
    """Return whether a pod can be asked directly: from a pod of its cluster, or on this machine."""
    return server.is_inside or ipaddress.ip_address(pod.address).is_loopback


def _url(pod: RouterPod, port: int, path: str, scheme: str = "http") -> str:
    return f"{scheme}://{authority(pod.address, port)}{path}"


def _scheme(pod: RouterPod) -> str:
    return "https" if pod.is_secure else "http"


def _trust(server: ApiServer, pod: RouterPod) -> ssl.SSLContext:
    """Return whom to trust at a pod's admin port: anyone, where the deployment names no authority."""
    match server.deployment(pod.deployment):
        case {"spec": {"router": {"adminTLS": {"authorityConfigMap": str(named)}}}}:
            pass
        case _:
            return admin_tls.unverified()
    what = f"ConfigMap {named}"
    config_map = server.read(f"/api/v1/namespaces/{server.namespace}/configmaps/{named}", what)
    try:
        return admin_tls.verifying(config_map["data"][admin_tls.AUTHORITY_KEY])
    except (admin_tls.AuthorityError, KeyError, TypeError):
        text = f"{what}: expected certificates in PEM under {admin_tls.AUTHORITY_KEY}"
        raise ClusterError("NoAuthority", text) from None


def _direct(server: ApiServer, pod: RouterPod, path: str, token: str) -> Iterator[bytes]:
    headers, url = {"authorization": f"Bearer {token}"}, _url(pod, contract.PORT_ADMIN, path, _scheme(pod))
    verify = _trust(server, pod) if pod.is_secure else False
    name = admin_tls.server_name(pod.deployment, server.namespace)
    with (
        httpx.Client(timeout=_DIRECT, trust_env=False, verify=verify) as client,
        client.stream("GET", url, headers=headers, extensions={"sni_hostname": name}) as got,
    ):
        if got.status_code != 200:
            raise server.refused(got.status_code, f"router {pod.name}", got.read())
        yield from got.iter_bytes()
