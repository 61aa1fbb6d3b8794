"""An EldrDeployment as the caller's kubeconfig sees it: its settings, and what its routers have logged and learned."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import kubernetes
import urllib3
import yaml

from eldr import contract
from eldr.fit.samples import FitError

Object = dict[str, Any]

_TIMEOUT = urllib3.Timeout(connect=10.0, read=60.0)
_DIRECT = httpx.Timeout(60.0, connect=5.0)
_CHUNK = 1 << 18


class RouterPod(NamedTuple):
    """A running pod with a router in it."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Found:
    """A deployment.

    Attributes
    ----------
    namespace : str
    resource : dict
        The EldrDeployment.
    states : tuple of dict
        What each router that answered says of itself; see :data:`eldr.contract.STATE_VERSION`.
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
    """The API server behind a context of the kubeconfig; inside a cluster without a kubeconfig, the pod's own.

    Parameters
    ----------
    context : str, optional
        None: the current one.
    namespace : str, optional
        None: the context's own.
    kubeconfig : str, optional
        None: what ``KUBECONFIG`` says, or ``~/.kube/config``.

    Raises
    ------
    FitError
        If there is no such context.
    """

    def __init__(
        self, context: str | None = None, namespace: str | None = None, kubeconfig: str | None = None
    ) -> None:
        configuration = kubernetes.client.Configuration()
        try:
            own, self._inside = _load(configuration, context, kubeconfig)
        except (kubernetes.config.ConfigException, yaml.YAMLError, OSError, TypeError) as error:
            raise FitError(
                "NoKubeconfig", f"{error}; set KUBECONFIG to your cluster's, or name a context of it"
            ) from None
        self.namespace = namespace or own
        configuration.retries = False
        self._client = kubernetes.client.ApiClient(configuration)

    def find(self, name: str, folder: Path) -> Found:
        """Read a deployment, its routers' states, and their logs into a folder of each.

        Raises
        ------
        FitError
            If something is missing, forbidden or out of reach; the message says what to do.
        """
        deployments = f"/apis/{contract.API_VERSION}/namespaces/{self.namespace}/{contract.DEPLOYMENTS}"
        what = f"{contract.KIND_DEPLOYMENT} {name}"
        resource = self._object(f"{deployments}/{name}", what)
        match resource:
            case {"metadata": {"name": str()}, "spec": dict()}:
                pass
            case _:
                raise _foreign(what, "metadata.name and spec")
        pods = self._routers(name)
        if not pods:
            raise FitError(
                "NoRouters",
                f"{contract.KIND_DEPLOYMENT} {name} in namespace {self.namespace} has no running router; "
                "wait until it is Available",
            )
        token = self._token(name)
        states: list[Object] = []
        logs: list[Path] = []
        problems: dict[str, str] = {}
        for pod in pods:
            try:
                state = _object_of(b"".join(self._read(pod, contract.PATH_STATE, token)))
                logs.append(self._download(pod, token, folder / pod.name))
                states.append(state)
            except (FitError, httpx.HTTPError, urllib3.exceptions.HTTPError, ValueError) as error:
                problems[pod.name] = f"{type(error).__name__}: {error}"
                if isinstance(error, FitError):
                    problems[pod.name] = str(error)
        notes = tuple(f"router {pod} was left out: {reason}" for pod, reason in problems.items())
        if not logs:
            raise FitError("RoutersUnreachable", "; ".join(notes))
        return Found(self.namespace, resource, tuple(states), tuple(logs), notes)

    def _routers(self, deployment: str) -> list[RouterPod]:
        selector = f"{contract.LABEL_DEPLOYMENT}={deployment},{contract.LABEL_ROUTER}=true"
        path, what = f"/api/v1/namespaces/{self.namespace}/pods", "its pods"
        pods = self._object(path, what, [("labelSelector", selector)]).get("items")
        if not isinstance(pods, list):
            raise _foreign(what, "a list in items")
        try:
            return [
                RouterPod(pod["metadata"]["name"], pod["status"]["podIP"])
                for pod in pods
                if pod["status"].get("podIP") and not pod["metadata"].get("deletionTimestamp")
            ]
        except (KeyError, TypeError, AttributeError):
            raise _foreign(what, "pods in items") from None

    def _token(self, deployment: str) -> str:
        name = contract.admin_secret_name(deployment)
        secret = self._object(f"/api/v1/namespaces/{self.namespace}/secrets/{name}", f"Secret {name}")
        try:
            return base64.b64decode(secret["data"][contract.SECRET_TOKEN_KEY], validate=True).decode("ascii")
        except (KeyError, TypeError, ValueError):
            raise FitError(
                "NoToken", f"Secret {name} holds no {contract.SECRET_TOKEN_KEY}; the operator makes it anew"
            ) from None

    def _download(self, pod: RouterPod, token: str, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "000000000000.siglog").open("wb") as file:
            for data in self._read(pod, contract.PATH_SIGLOG, token):
                file.write(data)
        return folder

    def _read(self, pod: RouterPod, path: str, token: str) -> Iterator[bytes]:
        """Yield what a router's admin port answers, straight from the pod where that is sure to be the pod."""
        if self._inside or ipaddress.ip_address(pod.address).is_loopback:
            yield from _direct(pod, path, token)
            return
        proxied = f"/api/v1/namespaces/{self.namespace}/pods/{pod.name}:{contract.PORT_ADMIN}/proxy{path}"
        answer = self._get(proxied, f"router {pod.name}", headers={contract.HEADER_ADMIN_TOKEN: token})
        with answer:
            yield from answer.stream(_CHUNK)

    def _object(self, path: str, what: str, query: list[tuple[str, str]] | None = None) -> Object:
        try:
            with self._get(path, what, query) as answer:
                found = json.loads(answer.data)
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise FitError("ClusterUnreachable", f"{what} could not be read: {error}") from None
        if not isinstance(found, dict):
            raise _foreign(what, "an object")
        return found

    def _get(
        self,
        path: str,
        what: str,
        query: list[tuple[str, str]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Return an answer of 200, its body not yet read."""
        serialized = self._client.param_serialize(
            "GET",
            path,
            query_params=query or [],
            header_params={"Accept": "application/json", **(headers or {})},
            auth_settings=["BearerToken"],
        )
        try:
            answer: urllib3.BaseHTTPResponse = self._client.call_api(
                *serialized, _request_timeout=_TIMEOUT
            ).response
        except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError) as error:
            server = self._client.configuration.host
            raise FitError(
                "ClusterUnreachable", f"{server} cannot be reached: {getattr(error, 'reason', None) or error}"
            ) from None
        if answer.status == 200:
            return answer
        with answer:
            said = _message(answer.data)
        raise _refused(answer.status, what, self.namespace, said)


def _load(configuration: Any, context: str | None, file: str | None) -> tuple[str, bool]:
    """Fill in a configuration; return the namespace that belongs to it, and whether this is a pod of that cluster."""
    file = file or os.environ.get("KUBECONFIG") or None  # the library looks once, when it is imported
    try:
        known, active = kubernetes.config.list_kube_config_contexts(file)
    except kubernetes.config.ConfigException:
        if context is not None or "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise
        kubernetes.config.load_incluster_config(client_configuration=configuration)
        return "default", True
    kubernetes.config.load_kube_config(file, context=context, client_configuration=configuration)
    if context is not None:
        active = next(one for one in known if one["name"] == context)
    return str((active or {}).get("context", {}).get("namespace") or "default"), False


def _direct(pod: RouterPod, path: str, token: str) -> Iterator[bytes]:
    url = (
        f"http://{httpx.URL(scheme='http', host=pod.address, port=contract.PORT_ADMIN).netloc.decode()}{path}"
    )
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(timeout=_DIRECT, trust_env=False) as client,
        client.stream("GET", url, headers=headers) as got,
    ):
        if got.status_code != 200:
            raise _refused(got.status_code, f"router {pod.name}", "", _message(got.read()))
        yield from got.iter_bytes()


def _object_of(state: bytes) -> Object:
    found = json.loads(state)
    if not isinstance(found, dict):
        raise FitError("ForeignState", "its state is no object; is it a router of this version?")
    return found


def _foreign(what: str, expected: str) -> FitError:
    return FitError(
        "ClusterUnreachable",
        f"{what}: expected {expected} in the server's answer; is it a Kubernetes API? Set KUBECONFIG to your cluster's",
    )


def _message(body: bytes) -> str:
    """Return what a Kubernetes Status or a router's error says."""
    try:
        found = json.loads(body)
        return str(found.get("message") or found["error"]["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return body[:200].decode(errors="replace")


def _refused(status: int, what: str, namespace: str, said: str) -> FitError:
    if status == 401:
        return FitError("Unauthorized", f"{what}: {said or 'unauthorized'}; log in to the cluster again")
    if status == 403:
        return FitError(
            "Forbidden",
            f"{said or what}; reading a deployment's logs takes get of eldrdeployments, of the Secret <name>-admin and of pods/proxy, "
            f"and list of pods, in namespace {namespace}",
        )
    if status == 404:
        return FitError(
            "NotFound",
            f"there is no {what} in namespace {namespace}; choose another one with --namespace, another cluster with --context",
        )
    return FitError("Refused", f"{what}: status {status}: {said}")
