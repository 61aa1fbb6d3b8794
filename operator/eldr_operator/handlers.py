"""Every kopf handler of the operator. They wake the queue and do nothing else: kopf watches, the controller works."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import kopf

from eldr import contract
from eldr_operator.controller import Controller

_OWNED = {contract.LABEL_MANAGED_BY: contract.FIELD_MANAGER}
_CHILDREN = ("deployments.v1.apps", "statefulsets.v1.apps", "jobs.v1.batch")


def _by_address(inside: kopf.ConnectionInfo) -> kopf.ConnectionInfo:
    """Use the API server's address as Kubernetes gives it to every pod: it works without cluster DNS."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host is None:
        return inside
    return dataclasses.replace(inside, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")


def registry(controller: Controller) -> kopf.OperatorRegistry:
    """Return the handlers, bound to a controller."""
    made = kopf.OperatorRegistry()

    @kopf.on.startup(registry=made, id="startup")
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.login(registry=made, id="login")
    async def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        inside = kopf.login_with_service_account(settings=settings)
        return _by_address(inside) if inside else kopf.login_with_kubeconfig(settings=settings)

    @kopf.on.probe(registry=made, id="resync")
    async def resync(**_: Any) -> str:
        late = controller.staleness()
        if late > 0:
            raise kopf.PermanentError(f"the resync is {late:.0f} s late")
        return "on time"

    @kopf.on.event(contract.GROUP, contract.VERSION, contract.DEPLOYMENTS, registry=made, id="deployment")
    async def deployment(namespace: str | None, name: str | None, **_: Any) -> None:
        controller.queue.wake((str(namespace), str(name)))

    @kopf.on.event(contract.GROUP, contract.VERSION, contract.FITS, registry=made, id="fit")
    async def fit(namespace: str | None, spec: Mapping[str, Any], **_: Any) -> None:
        controller.queue.wake((str(namespace), spec["deploymentRef"]["name"]))

    async def child(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        if owner := labels.get(contract.LABEL_DEPLOYMENT):
            controller.queue.wake((str(namespace), owner))

    for kind in _CHILDREN:
        plural, version, group = kind.split(".")
        kopf.on.event(group, version, plural, labels=_OWNED, registry=made, id=f"child-{plural}")(child)
    return made


def configure(settings: kopf.OperatorSettings) -> None:
    """Set everything of kopf that differs from its defaults."""
    settings.scanning.disabled = True  # the resources are known at start, and listing CRDs needs rights
    settings.posting.enabled = False  # the recorder writes Events
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.reconnect_backoff = 1.0
    for kind in _CHILDREN:
        settings.watching.label_selectors[kind.split(".", maxsplit=1)[0]] = (
            f"{contract.LABEL_MANAGED_BY}={contract.FIELD_MANAGER}"
        )
