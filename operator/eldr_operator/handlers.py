"""Every kopf handler of the operator. They tell the manager what changed and do nothing else: kopf watches, controllers work."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

import kopf

from eldr_operator.kube.api import RESOURCES, configuration
from eldr_operator.kube.cache import WATCHED
from eldr_operator.kube.streams import Watches


class _Named(ssl.SSLContext):
    """A context that asks for a certificate of another name than the address has."""

    server_name: str

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return super().wrap_bio(*arguments, **options | {"server_hostname": self.server_name})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Login(kopf.ConnectionInfo):
    """Certificates are checked as kubectl does: Python 3.13 refuses those without an Authority Key Identifier, which many clusters have."""

    server_name: str | None = None

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.server_name:
            named = cast("_Named", context)
            named.__class__ = _Named
            named.server_name = self.server_name
        return context


async def _login() -> _Login:
    """Return what kopf needs of the same configuration that every other request uses."""
    config = await configuration()
    header = await config.get_api_key_with_prefix("BearerToken")
    scheme, _, token = (header or "").partition(" ")
    return _Login(
        server=config.host,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        server_name=config.tls_server_name,
        scheme=scheme or None,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
        proxy_url=config.proxy,
    )


def registry(changed: Callable[..., None], watches: Watches) -> kopf.OperatorRegistry:
    """Return the handlers.

    Parameters
    ----------
    changed : callable
        Is told of each change, as :meth:`eldr_operator.manager.Manager.changed` takes it.
    watches : Watches
        Gives the pauses between attempts.
    """
    made = kopf.OperatorRegistry()

    @kopf.on.startup(registry=made, id="startup")
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, watches)

    @kopf.on.login(registry=made, id="login")
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await _login()

    for kind in WATCHED:
        resource = RESOURCES[kind]
        group, _, version = resource.api_version.rpartition("/")
        kopf.on.event(group, version, resource.plural, registry=made, id=f"watch-{kind.lower()}")(
            _watcher(changed, kind)
        )
    return made


def _watcher(changed: Callable[..., None], kind: str) -> Callable[..., Awaitable[None]]:
    async def on_event(event: kopf.RawEvent, **_: Any) -> None:
        changed(kind, dict(event["object"]), is_gone=event["type"] == "DELETED")

    return on_event


class _NoDifferences(kopf.DiffBaseStorage):
    """Keeps nothing to compare objects with: no handler asks what changed, and kopf's copies of each object cost a fifth of its time."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        """Return what is compared of an object."""
        del body, extra_fields
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return what was kept of an object."""
        del body
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Keep what is compared of an object."""


def configure(settings: kopf.OperatorSettings, watches: Watches) -> None:
    """Set everything of kopf that differs from its defaults."""
    settings.scanning.disabled = True  # the resources are known at start, and listing CRDs needs rights
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.posting.enabled = False  # the recorder writes Events
    settings.networking.error_backoffs = watches
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # each object gets a task and a queue with an event, and a deployment has 25 objects
    settings.queueing.idle_timeout = 0.1
    settings.watching.chunk_size = 50  # a list of 500 deployments' objects takes 200 MiB as a whole
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.reconnect_backoff = 1.0
    for kind, labels in WATCHED.items():
        if labels:
            settings.watching.label_selectors[RESOURCES[kind].plural] = labels
