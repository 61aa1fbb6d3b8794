"""TLS of the routers' admin ports: which pods speak it, who proves them, and what is wrong with a certificate."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

PORT: Final = "admin"
PORT_TLS: Final = "admin-tls"
"""Name of a router container's admin port that speaks TLS; the other one speaks plain HTTP. So each pod declares its protocol, and a
rollout may mix both."""
AUTHORITY_KEY: Final = "ca.crt"
"""Entry of the ConfigMap with the authorities, in PEM."""


class AuthorityError(ValueError):
    """There are no certificates of authorities where there should be some."""


def is_secure(pod: Mapping[str, Any]) -> bool:
    """Return whether the admin port of a pod's router speaks TLS."""
    spec = pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return any(port.get("name") == PORT_TLS for each in containers for port in each.get("ports") or ())


def server_name(deployment: str, namespace: str) -> str:
    """Return the name that certificates of a deployment's admin ports are for: its Service's, as addresses of pods change."""
    return f"{deployment}.{namespace}.svc"


def verifying(authorities: str) -> ssl.SSLContext:
    """Return what trusts these authorities alone.

    Parameters
    ----------
    authorities : str
        Certificates, in PEM.

    Raises
    ------
    AuthorityError
        If there is none, or one cannot be read.
    """
    # no default context: since Python 3.13 it refuses what names no Authority Key Identifier
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= (
        ssl.VERIFY_X509_PARTIAL_CHAIN
    )  # an intermediate authority may be all that is trusted
    try:
        # bundles name authorities in comments, in any script, but Python takes ASCII alone
        context.load_verify_locations(cadata=authorities.encode("ascii", "replace").decode())
    except (ValueError, OSError):
        raise AuthorityError("expected certificates in PEM") from None
    return context


def unverified() -> ssl.SSLContext:
    """Return a context that trusts any certificate, where no authority is configured: no worse than plain HTTP."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def distrust(error: BaseException) -> str:
    """Return what is wrong with the peer's TLS, in words that do not change between attempts; empty if TLS is not the cause."""
    for cause in _causes(error):
        # aiohttp's errors are of these types, too, and lack the attributes
        if refused := getattr(cause, "verify_message", ""):
            return f"its certificate is refused: {str(refused).rstrip('.')}"
        if isinstance(cause, ssl.SSLError) and (reason := getattr(cause, "reason", "")):
            return f"TLS with it fails: {str(reason).lower().replace('_', ' ')}"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        # aiohttp's errors have it as an attribute
        inner = getattr(cause, "os_error", None) or getattr(cause, "certificate_error", None)
        cause = inner if isinstance(inner, BaseException) else cause.__cause__ or cause.__context__
