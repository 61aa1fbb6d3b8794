"""Settings of the operator process."""

from __future__ import annotations

from dataclasses import dataclass

import eldr

DEFAULT_IMAGE = f"ghcr.io/eldr/eldr:{eldr.__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the operator runs.

    Parameters
    ----------
    namespaces : tuple of str
        Namespaces to watch; empty for all.
    image : str
        Image of routers, simulated engines and fits where a resource names none.
    resync_seconds : float
        Between two passes over every resource.
    metrics_port, liveness_port : int
        0 turns the port off.
    lease, lease_namespace : str
        By which one of several operators acts; without a namespace there is no other one. It is the operator's own namespace.
    identity : str
        Of this process, in the Lease.
    key, key_namespace : str
        Secret with the key that tokens of admin ports are derived from.
    monitoring : tuple of (str, str)
        Labels of the namespaces that may read metrics of routers and engines; empty for none.
    """

    namespaces: tuple[str, ...] = ()
    image: str = DEFAULT_IMAGE
    resync_seconds: float = 60.0
    metrics_port: int = 8080
    liveness_port: int = 8081
    host: str = "0.0.0.0"
    lease: str = "eldr-operator"
    lease_namespace: str = ""
    identity: str = ""
    key: str = "eldr-operator-key"
    key_namespace: str = "default"
    monitoring: tuple[tuple[str, str], ...] = ()

    @property
    def release(self) -> str:
        """Name of the release, in the Leases of the namespaces that it serves: its operators share it."""
        return f"{self.lease_namespace}/{self.lease}" if self.lease_namespace else self.identity
