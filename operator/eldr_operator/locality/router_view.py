"""Routers that are ready, and what they say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self

from eldr import contract
from eldr_operator import clock
from eldr_operator.drift.counts import Saving, Traffic, read_saving, read_traffic
from eldr_operator.models import CentroidSet

_MOST_SECONDS = 1e3
_MOST_WINDOWS = 1 << 31


@dataclass(frozen=True, slots=True)
class RouterPod:
    """A ready router that is not ending."""

    name: str
    address: str
    ready_since: datetime | None


class StepLaw(NamedTuple):
    """A decode engine's step time as a router has learned it: seconds, and from how many windows of telemetry."""

    fixed: float
    per_expert: float
    per_request: float
    windows: int

    @classmethod
    def of(cls, law: Mapping[str, Any]) -> Self | None:
        """Read ``law`` of a router's state; None if it has none, or one that is not of this kind."""
        windows = law.get("windows", 0)
        if type(windows) is not int or not 0 <= windows < _MOST_WINDOWS:
            return None
        fixed, per_expert, per_request = (
            _seconds(law.get(name)) for name in ("fixed", "per_expert", "per_request")
        )
        if fixed is None or per_expert is None or per_request is None:
            return None
        return cls(fixed, per_expert, per_request, windows)


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _MOST_SECONDS else None


@dataclass(frozen=True, slots=True)
class RouterView:
    """One ready router, as the last look at it saw it.

    Parameters
    ----------
    pod : RouterPod
    problem : str
        Why nothing is known; empty if the rest is.
    complaint : str
        What the router says it cannot follow, such as a routing table it refuses; empty for nothing.
    policy : str
    active, staged : str
        Digests of the sets it uses and holds ready; empty for none.
    refused : mapping of str to str
        Digest of a set it cannot load to the reason.
    samples : int
        Records in its log.
    router : str
        Its id, new with every start; empty if nothing is known.
    signatures : mapping of str to int
        Prefill answers since its start, by one of :data:`eldr.contract.SIGNATURE_QUALITIES`.
    expert_share, expert_share_error : float or None, float
        Share of a decode step that reading experts takes, as it has learned it, and the standard error; None: not yet.
    law : StepLaw or None
        Of a median decode engine.
    traffic : Traffic or None
        How requests look to its active set; None without one.
    saving : Saving or None
        What placement saves, as it has measured it lately.
    refuses_token : bool
        Whether it does not answer because it knows another token.
    """

    pod: RouterPod
    problem: str = ""
    complaint: str = ""
    policy: str = ""
    active: str = ""
    staged: str = ""
    refused: Mapping[str, str] | None = None
    samples: int = 0
    router: str = ""
    signatures: Mapping[str, int] = field(default_factory=dict)
    expert_share: float | None = None
    expert_share_error: float = 0.0
    law: StepLaw | None = None
    traffic: Traffic | None = None
    saving: Saving | None = None
    refuses_token: bool = False

    @classmethod
    def of(cls, pod: RouterPod, state: Mapping[str, Any]) -> Self:
        """Read ``/eldr/v1/state``, see :data:`eldr.contract.STATE_VERSION`."""
        law = state.get("law") or {}
        return cls(
            pod=pod,
            complaint=str(state.get("problem") or ""),
            policy=str(state["policy"]),
            active=str((state["active"] or {}).get("digest", "")),
            staged=str((state["staged"] or {}).get("digest", "")),
            refused={entry["digest"]: str(entry["reason"]) for entry in state["refused"]},
            samples=int(state["samples"]),
            router=str(state["router"]),
            signatures={
                quality: int(state["counters"].get(contract.signature_counter(quality), 0))
                for quality in contract.SIGNATURE_QUALITIES
            },
            expert_share=float(law["expert_share"]) if law else None,
            expert_share_error=float(law["expert_share_error"]) if law else 0.0,
            law=StepLaw.of(law),
            traffic=read_traffic(str(state["router"]), state["traffic"]) if state.get("traffic") else None,
            saving=read_saving(state["saving"]) if state.get("saving") else None,
        )

    def holds(self, wanted: CentroidSet) -> bool:
        """Tell whether the router could switch to a set at once, or has."""
        return wanted.digest in {self.active, self.staged}

    def refusal(self, wanted: CentroidSet) -> str | None:
        """Return why the router cannot load a set."""
        return (self.refused or {}).get(wanted.digest)


def ready_routers(pods: Iterable[Mapping[str, Any]]) -> list[RouterPod]:
    """Return the routers that count for an activation."""
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        if metadata.get("labels", {}).get(contract.LABEL_ROUTER) != "true" or metadata.get(
            "deletionTimestamp"
        ):
            continue
        container = _container(status, contract.CONTAINER_ROUTER)
        if container.get("ready") and status.get("podIP"):
            started = container.get("state", {}).get("running", {}).get("startedAt")
            found.append(RouterPod(metadata["name"], status["podIP"], clock.read(started)))
    return sorted(found, key=lambda router: router.name)


def _container(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    # Native sidecars are init containers.
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(key) or ():
            if container.get("name") == name:
                found: Mapping[str, Any] = container
                return found
    return {}
