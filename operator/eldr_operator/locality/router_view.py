"""Routers that are ready, and what they say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self, TypeVar

from eldr import admin_tls, contract
from eldr_operator import border, clock
from eldr_operator.drift.counts import Saving, Traffic, read_saving, read_traffic
from eldr_operator.models import CentroidSet

_MOST_SECONDS = 1e3
_MOST_WINDOWS = 1 << 31
_MOST_ERROR = 1e3
_MOST_REFUSED = 16
_MOST_VERSIONS = 4
_MOST_SILENT = 8
_LONGEST_ID = 64
_FIELDS = frozenset({"policy", "active", "staged", "refused", "samples", "router", "counters"})
"""That a state of any version has."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RouterPod:
    """A ready router that is not ending."""

    name: str
    address: str
    ready_since: datetime | None
    is_secure: bool = False


class LearnedStepTime(NamedTuple):
    """A decode engine's step time as a router has learned it: seconds, and from how many windows of telemetry."""

    fixed: float
    per_expert: float
    per_request: float
    windows: int

    @classmethod
    def of(cls, step_time: Mapping[str, Any]) -> Self | None:
        """Read ``step_time`` of a router's state; None if it has none, or one that is not of this kind."""
        windows = step_time.get("windows", 0)
        if type(windows) is not int or not 0 <= windows < _MOST_WINDOWS:
            return None
        fixed, per_expert, per_request = (
            _seconds(step_time.get(name)) for name in ("fixed", "per_expert", "per_request")
        )
        if fixed is None or per_expert is None or per_request is None:
            return None
        return cls(fixed, per_expert, per_request, windows)


def _seconds(value: object) -> float | None:
    return border.number(value, 0, _MOST_SECONDS)


def _policy(value: object) -> str | None:
    return value if isinstance(value, str) and value in contract.POLICIES else None


def _refused(value: object) -> dict[str, str]:
    entries = value if isinstance(value, list) else []
    known = (entry for entry in entries[:_MOST_REFUSED] if isinstance(entry, Mapping))
    found = {border.name(entry.get("digest")): border.text(entry.get("reason")) for entry in known}
    return {digest: reason or "no reason told" for digest, reason in found.items() if digest}


def _entries(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in (value if isinstance(value, list) else []) if isinstance(entry, Mapping)]


def _untested(value: object) -> tuple[str, ...]:
    told = {border.name(entry.get("untested")) for entry in _entries(value)}
    return tuple(sorted(told - {""})[:_MOST_VERSIONS])


def _silent(value: object) -> tuple[str, ...]:
    told = {border.name(entry.get("name")) for entry in _entries(value) if entry.get("counting") is False}
    return tuple(sorted(told - {""})[:_MOST_SILENT])


class _Reads:
    """Reads fields of a state, and takes note of those that are not what they should be."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self.odd: set[str] = set()

    def one(self, field: str, value: T | None) -> T | None:
        """Return a value that was read; None is odd."""
        if value is None:
            self.odd.add(field)
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        """Return an object; empty where there is none."""
        value = self._state.get(field)
        if value is not None and not isinstance(value, Mapping):
            self.odd.add(field)
        return value if isinstance(value, Mapping) else {}

    def digest(self, field: str) -> str:
        """Return the digest of a set; empty where there is none."""
        pointer = self.mapping(field)
        return (self.one(field, border.name(pointer.get("digest")) or None) or "") if pointer else ""

    def signatures(self) -> dict[str, int]:
        """Return the prefill answers by quality; those that are told."""
        counters, found = self.mapping("counters"), {}
        for quality in contract.SIGNATURE_QUALITIES:
            told = border.count(counters.get(contract.signature_counter(quality), 0))
            if self.one("counters", told) is not None:
                found[quality] = told or 0
        return found

    def drift(self, field: str, read: Callable[[Mapping[str, Any]], T | None]) -> T | None:
        """Return what a reader of drift makes of an object; None where there is none."""
        value = self.mapping(field)
        return self.one(field, read(value)) if value else None


@dataclass(frozen=True, slots=True)
class RouterView:
    """One ready router, as the last look at it saw it.

    Parameters
    ----------
    problem : str
        Why nothing is known; empty if the rest is.
    complaint : str
        What the router says it cannot follow, such as a routing table it refuses; empty for nothing.
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
    step_time : LearnedStepTime or None
        Of a median decode engine.
    traffic : Traffic or None
        How requests look to its active set; None without one.
    saving : Saving or None
        What placement saves, as it has measured it lately.
    untested : tuple of str
        Versions of decode engines that say that their plug-in was not tested with them.
    silent : tuple of str
        Names of decode engines that say that they have failed to count.
    refuses_token : bool
        Whether it does not answer because it knows another token.
    is_distrusted : bool
        Whether it is not asked because its certificate, or who signs it, is not in order.
    odd : tuple of str
        Fields of its state that are not what they should be, and count as unknown.
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
    step_time: LearnedStepTime | None = None
    traffic: Traffic | None = None
    saving: Saving | None = None
    untested: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    refuses_token: bool = False
    is_distrusted: bool = False
    odd: tuple[str, ...] = ()

    @classmethod
    def of(cls, pod: RouterPod, state: object) -> Self:
        """Read ``/eldr/v1/state``, see :data:`eldr.contract.STATE_VERSION`; a field that is not what it should be is unknown.

        Raises
        ------
        ValueError
            If it is no state at all.
        """
        if not isinstance(state, Mapping) or not state.keys() >= _FIELDS:
            raise ValueError(f"state: expected an object with {', '.join(sorted(_FIELDS))}")
        reads = _Reads(state)
        router = border.name(state["router"], _LONGEST_ID)
        step_time = reads.mapping("step_time")
        share = (
            reads.one("step_time", border.number(step_time.get("expert_share"), 0, 1)) if step_time else None
        )
        error = (
            reads.one("step_time", border.number(step_time.get("expert_share_error"), 0, _MOST_ERROR))
            if step_time
            else 0.0
        )
        samples = reads.one("samples", border.count(state["samples"]))
        return cls(
            pod=pod,
            complaint=border.text(state.get("problem")),
            policy=reads.one("policy", _policy(state["policy"])) or "",
            active=reads.digest("active"),
            staged=reads.digest("staged"),
            refused=_refused(state["refused"]),
            samples=samples or 0,
            router=reads.one("router", router or None) or "",
            signatures=reads.signatures(),
            expert_share=None if error is None else share,
            expert_share_error=error or 0.0,
            step_time=LearnedStepTime.of(step_time),
            # without an id one cannot tell what was counted since the last look
            traffic=reads.drift("traffic", lambda value: read_traffic(router, value)) if router else None,
            saving=reads.drift("saving", read_saving),
            untested=_untested(state.get("decode")),
            silent=_silent(state.get("decode")),
            odd=tuple(sorted(reads.odd)),
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
            at = clock.read(started)
            found.append(RouterPod(metadata["name"], status["podIP"], at, admin_tls.is_secure(pod)))
    return sorted(found, key=lambda router: router.name)


def _container(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    # Native sidecars are init containers.
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(key) or ():
            if container.get("name") == name:
                found: Mapping[str, Any] = container
                return found
    return {}
