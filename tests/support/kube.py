"""A small synchronous client of a test cluster's API server, with the administrator's rights or anybody else's."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Self

import httpx

from eldr import contract
from eldr_kube.cluster import Cluster
from eldr_operator.clock import utc_now
from eldr_operator.conditions import condition_of
from eldr_operator.kube.api import RESOURCES, path
from tests.support.processes import wait_for
from tests.support.threads import ApiClients

Object = dict[str, Any]


def delete_crds(cluster: Cluster) -> None:
    """Delete what the chart keeps: another release, in another namespace, could not take them over."""
    kinds = [
        f"{plural}.{contract.GROUP}" for plural in (contract.DEPLOYMENTS, contract.FITS, contract.SCALERS)
    ]
    cluster.kubectl("delete", "crd", *kinds, "--wait=true", "--timeout=60s")


class Refused(Exception):
    """The API server refused a request; the message is the server's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Conditions:
    """Reads conditions; ``find`` and ``until`` are those of a real or a simulated cluster."""

    find: Callable[[str, str], Object | None]
    until: Callable[..., Any]

    def condition(self, kind: str, name: str, type_: str) -> Object:
        return {**condition_of(self.find(kind, name), type_)}

    def until_condition(
        self, kind: str, name: str, type_: str, *, seconds: float = 60, **wanted: str
    ) -> Object:
        """Wait until a condition has the wanted fields, and return it."""

        def holds() -> Object | None:
            told = self.condition(kind, name, type_)
            return told if told and all(told[key] == value for key, value in wanted.items()) else None

        return self.until(holds, f"{kind} {name}: {type_} {wanted}", seconds, lambda: self.find(kind, name))


class Kube(Conditions):
    """Requests of one user in one namespace."""

    until = staticmethod(wait_for)
    now = staticmethod(utc_now)

    def __init__(self, cluster: Cluster, namespace: str, token: str | None = None) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._client = ApiClients(cluster, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def as_account(self, name: str) -> Kube:
        """Return a client with the token of a ServiceAccount."""
        return Kube(self.cluster, self.namespace, self.account_token(name))

    def account_token(self, name: str) -> str:
        url = path("ServiceAccount", self.namespace, name, "token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.request("POST", url, body)["status"]["token"])

    def request(
        self,
        method: str,
        url: str,
        body: Object | list[Object] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Object:
        headers = {"Accept": accept} | ({"Content-Type": content} if body is not None else {})
        return self._answer(method, url, json=body, params=query, headers=headers).json()

    def _answer(self, method: str, url: str, **asked: Any) -> httpx.Response:
        def answered() -> httpx.Response | None:
            found = self._client().request(method, url, **asked)
            # "come back": as from a CRD whose storage begins anew, because its status has changed
            return None if found.status_code == HTTPStatus.TOO_MANY_REQUESTS else found

        answer = wait_for(answered, f"{method} {url} to be answered", 30)
        if answer.is_error:
            raise Refused(answer.status_code, answer.json().get("message", answer.text))
        return answer

    def watch(self, url: str, seconds: int, **query: str) -> list[Object]:
        """Return what a watch tells within some seconds; at resource version 0, first of what is there."""
        asked = {"watch": "1", "timeoutSeconds": str(seconds), "resourceVersion": "0"} | query
        return [json.loads(line) for line in self._answer("GET", url, params=asked).text.splitlines()]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def get(self, kind: str, name: str) -> Object:
        return self.request("GET", path(kind, self.namespace, name))

    def find(self, kind: str, name: str) -> Object | None:
        try:
            return self.get(kind, name)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, labels: str = "") -> list[Object]:
        return self.request("GET", path(kind, self.namespace), labelSelector=labels)["items"]

    def create(self, kind: str, metadata: Object, **fields: Any) -> Object:
        body = {"apiVersion": RESOURCES[kind].api_version, "kind": kind, "metadata": metadata, **fields}
        return self.request("POST", path(kind, self.namespace), body)

    def merge(self, kind: str, name: str, body: Object, subresource: str = "") -> Object:
        url = path(kind, self.namespace, name, subresource)
        return self.request("PATCH", url, body, "application/merge-patch+json")

    def strategic(self, kind: str, name: str, body: Object, subresource: str = "") -> Object:
        url = path(kind, self.namespace, name, subresource)
        return self.request("PATCH", url, body, "application/strategic-merge-patch+json")

    def delete(self, kind: str, name: str) -> None:
        self.request("DELETE", path(kind, self.namespace, name))
