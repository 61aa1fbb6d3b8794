"""Routers that are ready, and what they say of themselves. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self

from eldr import admin_tls, contract
from eldr_operator import clock, parsing
from eldr_operator.conditions import has_ended
from eldr_operator.drift.counts import Saving, Traffic, read_saving, read_traffic
from eldr_operator.models import CentroidSet

_MOST_SECONDS = 1e3
_MOST_WINDOWS = 1 << 31
_MOST_ERROR = 1e3
_MOST_REFUSED = 16
_MOST_VERSIONS = 4
_MOST_SILENT = 8
_LONGEST_ID = 64
_REFUSES = re.compile(r"(^|; )(pods|routing): 40[13]: ")
"""In the problem of a router whose token or rights the API server does not accept."""
_SETTLES_SECONDS = 30.0
"""That a router, and its rights, may take at its start; later it is asked why it is not ready."""
_FIELDS = frozenset({"policy", "active", "staged", "refused", "samples", "router", "counters"})
"""That a state of any version has."""
_OBJECTS = ("active", "staged", "counters", "step_time", "traffic", "saving")


@dataclass(frozen=True, slots=True)
class RouterPod:
    """A ready router that is not ending."""

    name: str
    address: str
    ready_since: datetime | None
    is_secure: bool = False
    is_beside_engine: bool = True

    def has_settled(self, now: datetime) -> bool:
        """Tell whether it has run for so long that what it lacks is a fault."""
        return self.ready_since is not None and (now - self.ready_since).total_seconds() >= _SETTLES_SECONDS


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
        names = ("fixed", "per_expert", "per_request")
        fixed, per_expert, per_request = (
            parsing.number(step_time.get(name), 0, _MOST_SECONDS) for name in names
        )
        if fixed is None or per_expert is None or per_request is None:
            return None
        return cls(fixed, per_expert, per_request, windows)


def _refused(value: object) -> dict[str, str]:
    known = _entries(value)[:_MOST_REFUSED]
    reasons = {parsing.name(entry.get("digest")): parsing.text(entry.get("reason")) for entry in known}
    return {digest: reason or "no reason told" for digest, reason in reasons.items() if digest}


def _entries(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in (value if isinstance(value, list) else []) if isinstance(entry, Mapping)]


def _names(values: Iterable[object], most: int) -> tuple[str, ...]:
    return tuple(sorted({parsing.name(value) for value in values} - {""})[:most])


def _object(value: object) -> Mapping[str, Any] | None:
    """Return an object, empty where there is none; None for what is not one."""
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else None


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
    traffic, saving : Traffic or None, Saving or None
        How requests look to its active set, and what placement saves, as it has measured it lately.
    serves : bool
        Whether it can send requests to a decode engine, as far as it says.
    untested, silent : tuple of str
        Versions of decode engines whose plug-in was not tested with them, and names of those that have failed to count.
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
    serves: bool = True
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
        objects = {name: _object(state.get(name)) for name in _OBJECTS}
        policy, router = state["policy"], parsing.name(state["router"], _LONGEST_ID)
        counters, step_time = objects["counters"] or {}, objects["step_time"] or {}
        digests = {name: parsing.name((objects[name] or {}).get("digest")) for name in ("active", "staged")}
        samples = parsing.count(state["samples"])
        signatures = {
            quality: parsing.count(counters.get(contract.signature_counter(quality), 0))
            for quality in contract.SIGNATURE_QUALITIES
        }
        share = parsing.number(step_time.get("expert_share"), 0, 1)
        error = parsing.number(step_time.get("expert_share_error"), 0, _MOST_ERROR)
        traffic, saving = objects["traffic"], objects["saving"]
        # without an id one cannot tell what was counted since the last look
        read_of = read_traffic(router, traffic) if traffic and router else None
        saves = read_saving(saving) if saving else None
        odd = {
            "policy": policy not in contract.POLICIES,
            "samples": samples is None,
            "router": not router,
            "counters": None in signatures.values(),
            "step_time": bool(step_time) and (share is None or error is None),
            "traffic": bool(traffic and router) and read_of is None,
            "saving": bool(saving) and saves is None,
            **{name: bool(objects[name]) and not digest for name, digest in digests.items()},
        }
        decode = _entries(state.get("decode"))
        return cls(
            pod=pod,
            complaint=parsing.text(state.get("problem")),
            policy="" if odd["policy"] else policy,
            active=digests["active"],
            staged=digests["staged"],
            refused=_refused(state["refused"]),
            samples=samples or 0,
            router=router,
            signatures={quality: number for quality, number in signatures.items() if number is not None},
            expert_share=None if error is None else share,
            expert_share_error=error or 0.0,
            step_time=LearnedStepTime.of(step_time),
            traffic=read_of,
            saving=saves,
            serves=not isinstance(state.get("decode"), list)
            or any(entry.get("healthy") is not False for entry in decode),
            untested=_names((entry.get("untested") for entry in decode), _MOST_VERSIONS),
            silent=_names((e.get("name") for e in decode if e.get("counting") is False), _MOST_SILENT),
            odd=tuple(
                sorted(name for name, is_odd in odd.items() if is_odd or objects.get(name, {}) is None)
            ),
        )

    @property
    def is_unauthorized(self) -> bool:
        """Whether the API server refuses the router, so that what it knows of engines is out of date."""
        return _REFUSES.search(self.complaint) is not None

    def holds(self, wanted: CentroidSet) -> bool:
        """Tell whether the router could switch to a set at once, or has."""
        return wanted.digest in {self.active, self.staged}

    def refusal(self, wanted: CentroidSet) -> str | None:
        """Return why the router cannot load a set."""
        return (self.refused or {}).get(wanted.digest)


def ready_routers(pods: Iterable[Mapping[str, Any]]) -> list[RouterPod]:
    """Return the routers that count for an activation."""
    return [pod for pod, is_ready in _running(pods) if is_ready]


def unready_routers(pods: Iterable[Mapping[str, Any]], now: datetime) -> list[RouterPod]:
    """Return the routers that have run for a while and are not ready: they may say why."""
    return [pod for pod, is_ready in _running(pods) if not is_ready and pod.has_settled(now)]


def _running(pods: Iterable[Mapping[str, Any]]) -> list[tuple[RouterPod, bool]]:
    """Return the routers that may answer, and whether each is ready."""
    routers = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        is_router = metadata.get("labels", {}).get(contract.LABEL_ROUTER) == "true"
        if not is_router or metadata.get("deletionTimestamp") or has_ended(pod):
            continue
        container = _container(status, contract.CONTAINER_ROUTER)
        if status.get("podIP"):
            at = clock.read(((container.get("state") or {}).get("running") or {}).get("startedAt"))
            beside = metadata["labels"].get(contract.LABEL_ROLE) != contract.ROLE_ROUTER
            router = RouterPod(metadata["name"], status["podIP"], at, admin_tls.is_secure(pod), beside)
            routers.append((router, bool(container.get("ready"))))
    return sorted(routers, key=lambda one: one[0].name)


def _container(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    # Native sidecars are init containers.
    known = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return next((container for container in known if container.get("name") == name), {})
