"""A fit Job's access to the Kubernetes API, within its Role."""

from __future__ import annotations

import base64
import json
from typing import Any

import kubernetes
import stamina

from eldr import contract, credentials, kubeconfig
from eldr.addresses import authority
from eldr.admin_tls import is_secure


def _is_transient(error: Exception) -> bool:
    # A fresh Role takes a moment to be seen by the authorizer, so a 403 may heal.
    status = getattr(error, "status", None)
    return status in {403, 429, 500, 502, 503, 504} or isinstance(error, OSError)


class Cluster:
    """The API server, seen from one namespace.

    Parameters
    ----------
    namespace : str
    labels : dict of str to str
        Of every object written.
    owner : dict
        Owner reference of every object written.
    """

    def __init__(self, namespace: str, labels: dict[str, str], owner: dict[str, Any]) -> None:
        configuration = credentials.load().configuration
        self._api = kubernetes.client.CoreV1Api(kubeconfig.client_of(configuration))
        self._namespace = namespace
        self._labels = labels
        self._owner = owner

    @stamina.retry(on=_is_transient, attempts=6, timeout=30.0)
    def router_urls(self, deployment: str) -> list[str]:
        """Return the admin URLs of a deployment's running routers."""
        selector = f"{contract.LABEL_DEPLOYMENT}={deployment},{contract.LABEL_ROUTER}=true"
        raw = self._api.list_namespaced_pod(self._namespace, label_selector=selector, _preload_content=False)
        pods = json.loads(raw.data)["items"]
        return [
            f"{'https' if is_secure(pod) else 'http'}://{authority(pod['status']['podIP'], contract.PORT_ADMIN)}"
            for pod in pods
            if pod["status"].get("podIP") and not pod["metadata"].get("deletionTimestamp")
        ]

    @stamina.retry(on=_is_transient, attempts=6, timeout=30.0)
    def config_map(self, name: str) -> dict[str, Any] | None:
        """Return a ConfigMap, or None where there is none."""
        try:
            raw = self._api.read_namespaced_config_map(name, self._namespace, _preload_content=False)
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                return None
            raise
        config_map: dict[str, Any] = json.loads(raw.data)
        return config_map

    @stamina.retry(on=_is_transient, attempts=6, timeout=30.0)
    def create(
        self, name: str, *, data: dict[str, str] | None = None, binary: dict[str, bytes] | None = None
    ) -> None:
        """Create an immutable ConfigMap, or keep an equal one.

        Raises
        ------
        FileExistsError
            If a ConfigMap of that name holds something else.
        """
        encoded = {key: base64.b64encode(value).decode("ascii") for key, value in (binary or {}).items()}
        body = kubernetes.client.V1ConfigMap.from_dict(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "labels": self._labels, "ownerReferences": [self._owner]},
                "immutable": True,
                "data": data or {},
                "binaryData": encoded,
            }
        )
        try:
            self._api.create_namespaced_config_map(self._namespace, body, _preload_content=False)
        except kubernetes.client.ApiException as error:
            if error.status != 409:
                raise
            existing = self.config_map(name) or {}
            if (existing.get("data") or {}, existing.get("binaryData") or {}) != (data or {}, encoded):
                raise FileExistsError(
                    f"ConfigMap {name} exists with other contents; delete it or rename the EldrFit"
                ) from error
