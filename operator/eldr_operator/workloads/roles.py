"""Live children -> what they amount to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator.conditions import NOT_REFUSED, Condition, Refusal, condition_of, has_ended, is_observed
from eldr_operator.models import EldrDeployment, RolloutSpec
from eldr_operator.unwritten import Unwritten
from eldr_operator.workloads import ended, gaps, rollout
from eldr_operator.workloads import trouble as troubles
from eldr_operator.workloads.revisions import name_of
from eldr_operator.workloads.rollback import Choice
from eldr_operator.workloads.updates import Plan

Object = Mapping[str, Any]

ENGINES = (contract.ROLE_PREFILL, contract.ROLE_DECODE)


@dataclass(frozen=True, slots=True)
class Role:
    """Pods of one role.

    Parameters
    ----------
    type : str
        Of its condition, for example ``DecodeReady``.
    available : int
        Pods that have been ready for as long as ``rollout.minReadySeconds`` asks for.
    is_current : bool
        Whether every pod wanted runs the newest template.
    trouble : Condition or None
        Why pods are not ready, as far as Kubernetes says.
    kept : int
        Pods that keep an earlier template, as the spec says.
    is_paused : bool
        Whether a rollout waits until the spec lets it go on.
    has_gaps : bool
        Whether pods end before their successors start.
    gap_at : datetime or None
        When its only pod will end before its successor starts.
    late : str
        What has not become ready in its time, where a rollout stands still.
    """

    type: str
    desired: int
    ready: int = 0
    existing: int = 0
    available: int = 0
    is_current: bool = False
    trouble: Condition | None = None
    kept: int = 0
    is_paused: bool = False
    has_gaps: bool = False
    gap_at: datetime | None = None
    late: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether all pods wanted are ready with the newest template."""
        return self.is_current and self.ready >= self.desired

    @property
    def condition(self) -> Condition:
        """What it amounts to."""
        text = f"{self.ready} of {self.desired} pods ready"
        if self.is_ready:
            return Condition(self.type, "True", "AllReady", text)
        if self.trouble is not None:
            return self.trouble._replace(type=self.type, message=f"{text}; {self.trouble.message}")
        if self.ready >= self.desired:
            reason = "RolloutPaused" if self.is_paused else "RolloutInProgress"
            return Condition(self.type, "False", reason, f"{text}, not all with the newest template")
        return Condition(self.type, "False", "PodsNotReady", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """What runs, as far as it could be brought to its desired state.

    Parameters
    ----------
    plan : Plan
        Of the revisions of pods.
    unwritten : sequence of Unwritten
        Children that could not be brought to their desired state.
    revisions : mapping
        Role to what its pods are made from.
    unpaired : sequence of str
        Ready decode pods to which no ready prefill engine may hand KV over.
    mixed_images : str
        Which engines run different images by one name; empty if none do.
    scaled_by : mapping
        Role to who set its replicas, where that is not the spec.
    spec_replicas : mapping
        Role to the replicas of the spec that have no effect, for the same roles.
    model : Condition or None
        How far the download of the model is; None where nothing is downloaded.
    """

    prefill: Role
    decode: Role
    router: Role
    plan: Plan
    unwritten: Sequence[Unwritten] = ()
    revisions: Mapping[str, Choice] = field(default_factory=dict)
    unpaired: Sequence[str] = ()
    mixed_images: str = ""
    scaled_by: Mapping[str, str] = field(default_factory=dict)
    spec_replicas: Mapping[str, int] = field(default_factory=dict)
    model: Condition | None = None

    @property
    def roles(self) -> dict[str, Role]:
        """Each role by its name."""
        return {
            contract.ROLE_PREFILL: self.prefill,
            contract.ROLE_DECODE: self.decode,
            contract.ROLE_ROUTER: self.router,
        }


class Wanted(NamedTuple):
    """What the spec wants of a role.

    Attributes
    ----------
    type : str
        Of its condition.
    rollout : RolloutSpec
        How pods with a new template take the place of those that run.
    kept : int
        Pods that are to keep an earlier template.
    revision : str
        Name of what its pods are to be made from; empty if that is not known.
    """

    type: str
    replicas: int
    rollout: RolloutSpec = RolloutSpec()
    kept: int = 0
    revision: str = ""


def role(
    wanted: Wanted,
    workload: Object | None,
    pods: Sequence[Object],
    now: datetime,
    refusal: Refusal = NOT_REFUSED,
    *,
    cause: Condition | None = None,
) -> Role:
    """Sum up a Deployment or StatefulSet and its pods.

    Parameters
    ----------
    refusal : Refusal
        Why pods cannot be created, where the workload's own conditions do not tell it; since when in this rollout.
    cause : Condition or None
        Why pods are not ready, beside what they show themselves.
    """
    type_, desired = wanted.type, wanted.replicas
    if workload is None:
        return Role(type_, desired)
    status = workload.get("status") or {}
    # what is only being written has no status yet; a release without revisions names none
    named = name_of(workload)
    seen = is_observed(workload) and (not named or not wanted.revision or named == wanted.revision)
    kept = min(wanted.kept, desired)
    current = status.get("updatedReplicas", 0) >= desired - kept and seen
    trouble = _refused(type_, workload, refusal) or troubles.of_pods(type_, pods, now)
    if trouble and cause:  # a pod that was evicted, and its successor that finds no node
        trouble = trouble._replace(message=f"{trouble.message}; {cause.message}")
    return Role(
        type=type_,
        desired=desired,
        ready=min(status.get("readyReplicas", 0), desired),
        existing=status.get("replicas", 0),
        available=min(status.get("availableReplicas", 0), desired),
        is_current=current and status.get("replicas", 0) <= desired,
        trouble=trouble or cause,
        kept=kept,
        is_paused=wanted.rollout.pause == "Enabled",
        has_gaps=rollout.has_gaps(workload),
        gap_at=gaps.begins_at(wanted.rollout, workload, pods, now, refusal),
        late=rollout.late(wanted.rollout, workload, pods, now, refusal) if seen else "",
    )


def of_role(pods: Iterable[Object], name: str) -> list[Object]:
    """Return the pods of a role, by name."""
    matching = [pod for pod in pods if pod["metadata"].get("labels", {}).get(contract.LABEL_ROLE) == name]
    return sorted(matching, key=lambda pod: str(pod["metadata"]["name"]))


def runs_router(pod: Object) -> bool:
    """Tell whether a pod holds a router whose container has started."""
    return any(
        container["name"] == contract.CONTAINER_ROUTER and (container.get("state") or {}).get("running")
        for container in ended.containers(pod)
    )


def has_sidecars(cr: EldrDeployment, pods: Iterable[Object]) -> bool:
    """Tell whether as many prefill pods with a router are ready as there are to be."""
    ready = of_role(_ready_routers(pods), contract.ROLE_PREFILL)
    return len(ready) >= cr.spec.prefill.replicas


def needs_sidecars(cr: EldrDeployment, pods: Iterable[Object]) -> bool:
    """Tell whether clients are served by nobody but routers beside prefill engines, though those of a Deployment are to follow."""
    ready = {pod["metadata"]["labels"].get(contract.LABEL_ROLE) for pod in _ready_routers(pods)}
    return cr.spec.router.placement == "Deployment" and ready == {contract.ROLE_PREFILL}


def _ready_routers(pods: Iterable[Object]) -> list[Object]:
    return [
        pod
        for pod in pods
        if pod["metadata"]["labels"].get(contract.LABEL_ROUTER) == "true"
        and not has_ended(pod)
        and condition_of(pod, "Ready").get("status") == "True"
    ]


def _refused(type_: str, workload: Object, refusal: Refusal) -> Condition | None:
    for each in (refusal, rollout.refusal_of(workload)):
        if each.message:
            return Condition(type_, "False", "PodsRefused", each.message)
    return None
