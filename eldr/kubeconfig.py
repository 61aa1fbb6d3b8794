"""A Kubernetes API server, as the caller's kubeconfig leads to it."""

from __future__ import annotations

import json
import ssl
from typing import Any, Self

import kubernetes
import urllib3
from urllib3.util.ssl_ import create_urllib3_context

from eldr import contract, credentials
from eldr.kubeconfig_files import CredentialsError, KubeconfigError

Object = dict[str, Any]

_TIMEOUT = urllib3.Timeout(connect=10.0, read=60.0)


class ClusterError(Exception):
    """Something cannot be read; ``reason`` is one CamelCase word, the message names the remedy.

    Attributes
    ----------
    passes : bool
        Whether the same request may succeed later.
    """

    def __init__(self, reason: str, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.passes = passes


class ApiServer:
    """The API server behind a context of the kubeconfig; inside a cluster without a kubeconfig, the pod's own.

    Parameters
    ----------
    context : str, optional
        None: the current one.
    namespace : str, optional
        None: the context's own.
    kubeconfig : str, optional
        None: the files of ``KUBECONFIG``, or ``~/.kube/config``.
    rights : str
        What the caller must be allowed to, for who is not: "reading ... takes get of ...".

    Attributes
    ----------
    is_inside : bool
        Whether this is a pod of that cluster.
    cluster : str
        Address and context, for messages.

    Raises
    ------
    ClusterError
        If there is no such context, or its credentials cannot be had.
    """

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        *,
        rights: str,
    ) -> None:
        try:
            configuration, own, context_name = credentials.load(context, kubeconfig)
        except (KubeconfigError, OSError) as error:
            raise ClusterError(
                "NoKubeconfig",
                f"{error}; set KUBECONFIG to your cluster's, or name a context of it",
            ) from None
        except CredentialsError as error:
            raise _no_credentials(error) from None
        self.is_inside = context_name is None
        self.cluster = (
            f"{configuration.host} ({f'context {context_name}' if context_name else 'of this pod'})"
        )
        self.namespace = namespace or own
        self._rights = rights
        configuration.retries = False
        self._client = client_of(configuration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.rest_client.pool_manager.clear()

    def path(self, plural: str, name: str = "") -> str:
        """Return the API's path of our resources of a kind in the namespace, or of one of them."""
        where = f"/apis/{contract.API_VERSION}/namespaces/{self.namespace}/{plural}"
        return f"{where}/{name}" if name else where

    def deployment_path(self, name: str) -> str:
        """Return the API's path of an EldrDeployment; a ClusterError if none can have that name."""
        if not name or "/" in name:
            raise ClusterError("NoName", f"NAME {name!r}: expected the name of an {contract.KIND_DEPLOYMENT}")
        return self.path(contract.DEPLOYMENTS, name)

    def deployment(self, name: str) -> Object:
        """Return an EldrDeployment that has a name and a spec; errors as of :meth:`read`."""
        what = f"{contract.KIND_DEPLOYMENT} {name}"
        resource = self.read(self.deployment_path(name), what)
        match resource:
            case {"metadata": {"name": str()}, "spec": dict()}:
                return resource
            case _:
                raise foreign(what, "metadata.name and spec")

    def read(self, path: str, what: str, query: list[tuple[str, str]] | None = None) -> Object:
        """Return an object, or a list of them.

        Parameters
        ----------
        path : str
            Of the API.
        what : str
            How messages call it.
        query : list of (str, str), optional

        Raises
        ------
        ClusterError
            If it is missing, forbidden or out of reach.
        """
        return _object(self.get(path, what, query), what)

    def merge(self, path: str, what: str, patch: Object) -> Object:
        """Apply a JSON merge patch and return the object; errors as of :meth:`read`."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return _object(self._ask("PATCH", path, what, headers, body=patch), what)

    def get(
        self,
        path: str,
        what: str,
        query: list[tuple[str, str]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Return an answer of 200, its body not yet read; parameters and errors as of :meth:`read`."""
        return self._ask("GET", path, what, headers or {}, query_params=query or [])

    def answer(
        self,
        path: str,
        *,
        method: str = "GET",
        body: Object | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = 60.0,
    ) -> tuple[int, bytes]:
        """Return status and body of an answer, whatever they are; a ClusterError where there is none in time."""
        kind = {"Content-Type": "application/json"} if body else {}
        timeout = urllib3.Timeout(connect=10.0, read=seconds)
        with self._send(method, path, kind | (headers or {}), timeout=timeout, body=body) as answer:
            return answer.status, answer.data

    def _ask(
        self, method: str, path: str, what: str, headers: dict[str, str], **parts: Any
    ) -> urllib3.BaseHTTPResponse:
        answer = self._send(method, path, headers, **parts)
        if answer.status == 200:
            return answer
        with answer:
            body = answer.data
        if answer.status == 404 and path.startswith("/apis/") and not body.lstrip().startswith(b"{"):
            # an API server answers in plain text where it does not serve a resource at all
            raise ClusterError(
                "NotInstalled",
                f"{what}: this cluster does not know the resource; install ELDR (helm install eldr charts/eldr -n eldr-system "
                "--create-namespace), or choose another cluster with --context",
            )
        raise self.refused(answer.status, what, body)

    def _send(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        *,
        timeout: urllib3.Timeout = _TIMEOUT,
        **parts: Any,
    ) -> urllib3.BaseHTTPResponse:
        try:
            serialized = self._client.param_serialize(
                method,
                path,
                header_params={"Accept": "application/json", **headers},
                auth_settings=["BearerToken"],
                **parts,
            )
            answer: urllib3.BaseHTTPResponse = self._client.call_api(
                *serialized, _request_timeout=timeout
            ).response
        except CredentialsError as error:
            raise _no_credentials(error) from None
        except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError) as error:
            server = self._client.configuration.host
            raise ClusterError(
                "ClusterUnreachable",
                f"{server} cannot be reached: {getattr(error, 'reason', None) or error}",
                passes=True,
            ) from None
        return answer

    def refused(self, status: int, what: str, body: bytes) -> ClusterError:
        """Return the error of an answer that is not 200.

        Parameters
        ----------
        what : str
            That was asked for.
        body : bytes
            A Kubernetes Status, or a router's error.
        """
        said = _message(body)
        if status == 401:
            return ClusterError(
                "Unauthorized", f"{what}: {said or 'unauthorized'}; log in to the cluster again"
            )
        if status == 403:
            return ClusterError("Forbidden", f"{said or what}; {self._rights}, in namespace {self.namespace}")
        if status == 404:
            return ClusterError(
                "NotFound",
                f"there is no {what} in namespace {self.namespace}; choose another one with --namespace, another cluster with --context",
            )
        if status == 409:
            return ClusterError("Conflict", f"{what}: {said or 'somebody else has changed it'}; try again")
        passes = status == 429 or status >= 500
        return ClusterError("Refused", f"{what}: status {status}: {said}", passes=passes)


def _no_credentials(error: CredentialsError) -> ClusterError:
    return ClusterError("NoCredentials", f"{error}; log in to the cluster again")


def _object(answer: urllib3.BaseHTTPResponse, what: str) -> Object:
    try:
        with answer:
            value = json.loads(answer.data)
    except (urllib3.exceptions.HTTPError, ValueError, RecursionError) as error:
        raise ClusterError("ClusterUnreachable", f"{what} could not be read: {error}", passes=True) from None
    if not isinstance(value, dict):
        raise foreign(what, "an object")
    return value


def foreign(what: str, expected: str) -> ClusterError:
    """Return the error of an object that is not what it should be."""
    return ClusterError(
        "ClusterUnreachable",
        f"{what}: expected {expected} in the server's answer; is it a Kubernetes API? Set KUBECONFIG to your cluster's",
    )


def client_of(configuration: Any) -> Any:
    """Return a client that checks certificates as kubectl does.

    Python 3.13 by itself refuses certificates without an Authority Key Identifier, which many clusters have.
    """
    context = create_urllib3_context(
        cert_reqs=ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE, verify_flags=0
    )
    if configuration.ssl_ca_cert is None and configuration.ca_cert_data is None:
        context.load_default_certs()  # urllib3 does so with contexts of its own alone
    if not configuration.verify_ssl:  # its user wrote so, and kubectl does not warn either
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    client = kubernetes.client.ApiClient(configuration)
    client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = context
    return client


def _message(body: bytes) -> str:
    """Return the message of a Kubernetes Status or of a router's error."""
    try:
        value = json.loads(body)
        return str(value.get("message") or value["error"]["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return body[:200].decode(errors="replace")
