"""A thin asyncio client of the API server: plain dicts in, plain dicts out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException, Configuration

import eldr
from eldr import async_credentials, contract
from eldr.kubeconfig_files import CredentialsError, KubeconfigError
from eldr_operator.errors import (
    ApiError,
    ApiUnavailableError,
    NoAnswerError,
    NoClusterError,
    RequestFailedError,
    UnreadableError,
)
from eldr_operator.parsing import load

Object = dict[str, Any]

_REQUEST_SECONDS = 15
_PAGE = "50"
"""Objects of a list that are in memory as a whole."""
_BAD_APPLY = ("failed to create typed patch object", "failed to convert new object")
"""How the server answers an apply whose fields have the wrong types, or no quantities: with status 500, though only the body is at fault."""
_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io"


class Resource(NamedTuple):
    """Where a kind lives."""

    api_version: str
    plural: str


RESOURCES = {
    contract.KIND_DEPLOYMENT: Resource(contract.API_VERSION, contract.DEPLOYMENTS),
    contract.KIND_FIT: Resource(contract.API_VERSION, contract.FITS),
    contract.KIND_SCALER: Resource(contract.API_VERSION, contract.SCALERS),
    "ConfigMap": Resource("v1", "configmaps"),
    "ControllerRevision": Resource("apps/v1", "controllerrevisions"),
    "Deployment": Resource("apps/v1", "deployments"),
    "Event": Resource("v1", "events"),
    "Job": Resource("batch/v1", "jobs"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "Pod": Resource("v1", "pods"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "Role": Resource("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": Resource("v1", "secrets"),
    "Service": Resource("v1", "services"),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "StatefulSet": Resource("apps/v1", "statefulsets"),
}


def path(kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """Return the URL path of a kind, an object or a subresource."""
    resource = RESOURCES[kind]
    prefix = "/apis" if "/" in resource.api_version else "/api"
    parts = [prefix, resource.api_version]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (resource.plural, name, subresource) if part]
    return "/".join(parts)


async def configuration() -> Configuration:
    """Return the address and the credentials of the API server, for every client of the operator.

    Raises
    ------
    NoClusterError
        If there are none.
    """
    try:
        return await async_credentials.load()
    except (KubeconfigError, CredentialsError, OSError) as error:
        raise NoClusterError(str(error)) from error


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[Api]:
    """Yield a client with the pod's own credentials, or those of the kubeconfig outside a cluster; errors as of :func:`configuration`."""
    async with ApiClient(await configuration()) as client:
        client.user_agent = f"{contract.FIELD_MANAGER}/{eldr.__version__}"
        yield Api(client)


class Api:
    """The API server.

    Parameters
    ----------
    client : kubernetes.aio.client.ApiClient
        Brings address, certificates and tokens.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def request(
        self,
        method: str,
        url: str,
        *,
        query: Iterable[tuple[str, str]] = (),
        body: Object | Sequence[Object] | None = None,
        accept: str = _JSON,
        content: str = _JSON,
    ) -> Object:
        """Send one request.

        Raises
        ------
        ApiError
            If the server refuses it.
        ApiUnavailableError
            If there is no answer, or one that cannot be read or asks to come back later.
        RequestFailedError
            If the server fails at it.
        """
        try:
            request = await self._client.param_serialize(
                method,
                url,
                query_params=list(query),
                header_params={"Accept": accept, "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*request, _request_timeout=_REQUEST_SECONDS)
            await response.read()
        except ApiException as error:
            raise _refusal(int(error.status or 0), str(error.body)) from None
        except TimeoutError:
            raise NoAnswerError(
                f"{method} {url}: no answer from the API server in {_REQUEST_SECONDS} s"
            ) from None
        except CredentialsError as error:
            raise ApiUnavailableError(f"{method} {url}: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(
                f"{method} {url}: no answer from the API server: {error or type(error).__name__}"
            ) from None
        if response.status >= 300:
            raise _refusal(response.status, response.data.decode(errors="replace"))
        try:
            answer: Object = load(response.data)
        except ValueError as error:
            raise UnreadableError(f"{method} {url}: the answer cannot be read: {error}") from None
        return answer

    async def get(
        self, kind: str, namespace: str, name: str, *, metadata_only: bool = False
    ) -> Object | None:
        """Return an object, or None where there is none."""
        accept = _METADATA.format("") if metadata_only else _JSON
        try:
            return await self.request("GET", path(kind, namespace, name), accept=accept)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self,
        kind: str,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        keep: Callable[[Object], Object] = lambda live: live,
        came: Callable[[], object] = lambda: None,
    ) -> tuple[list[Object], int]:
        """Return the objects of a kind, in all namespaces if ``namespace`` is None, and the version of the list.

        Parameters
        ----------
        keep : callable
            Returns what to keep of an object: a list comes page by page, so that it never takes memory as a whole.
        came : callable
            Is called with each page that has come.
        """
        accept = _METADATA.format("List") if metadata_only else _JSON
        query = [
            (key, value)
            for key, value in (("labelSelector", labels), ("fieldSelector", fields), ("limit", _PAGE))
            if value
        ]
        objects: list[Object] = []
        more: list[tuple[str, str]] = []
        while True:
            answer = await self.request("GET", path(kind, namespace), query=[*query, *more], accept=accept)
            # An empty list of metadata has null for its items.
            objects += map(keep, answer["items"] or ())
            came()
            metadata = answer["metadata"]
            if not metadata.get("continue"):
                return objects, int(metadata["resourceVersion"])
            more = [("continue", metadata["continue"])]

    async def create(self, manifest: Object, manager: str = contract.FIELD_MANAGER) -> Object:
        """Create an object; one that exists is an ApiError of status 409."""
        namespace = manifest["metadata"]["namespace"]
        return await self.request(
            "POST",
            path(manifest["kind"], namespace),
            query=[("fieldManager", manager)],
            body=manifest,
        )

    async def apply(self, manifest: Object, subresource: str = "") -> Object:
        """Apply an object by server-side apply."""
        metadata = manifest["metadata"]
        return await self.request(
            "PATCH",
            path(manifest["kind"], metadata["namespace"], metadata["name"], subresource),
            query=[("fieldManager", contract.FIELD_MANAGER), ("force", "true")],
            body=manifest,
            content="application/apply-patch+yaml",
        )

    async def json_patch(
        self, kind: str, namespace: str, name: str, operations: Sequence[Object], manager: str
    ) -> Object:
        """Change an object by a JSON patch; one whose tests fail is an ApiError of status 422."""
        return await self.request(
            "PATCH",
            path(kind, namespace, name),
            query=[("fieldManager", manager)],
            body=operations,
            content="application/json-patch+json",
        )

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete an object, but no other of the same name; one that is gone is fine."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self.request("DELETE", path(kind, namespace, name), body=options)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise


def _refusal(status: int, text: str) -> ApiError | ApiUnavailableError:
    try:
        answer = load(text)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", text[:200]
    # gone is the rest of a list that took too long
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.GONE}:
        return ApiUnavailableError(f"{status} {reason}: {message}")
    if status >= 500 and not message.startswith(_BAD_APPLY):
        return RequestFailedError(status, reason, message)
    return ApiError(status, reason, message)
