"""Which revision the pods of each role have: what the spec asks for, an earlier one that it names, or the last one that worked. Pure.

A revision is *completed* once all pods have it and are available (ready for ``minReadySeconds``), but for those that no node has had room for, or
that were refused, for a minute. It has *failed* when its time is over and no pod has got ready, or none could be created; or when a container has
crashed three times, or refuses to run, and no pod is available. Both are kept as annotations of its ControllerRevision. A failure is forgotten as soon as the spec asks for
something else, but not when a maintenance window closes: the next one would try the same images again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import clock
from eldr_operator.conditions import NOT_REFUSED, Refusal, is_observed
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment, RolloutSpec
from eldr_operator.unwritten import REFUSED, Unwritten
from eldr_operator.workloads import revisions, rollout
from eldr_operator.workloads.revisions import Revision
from eldr_operator.workloads.updates import Plan

_ENGINES = (contract.ROLE_PREFILL, contract.ROLE_DECODE)


class Choice(NamedTuple):
    """What the pods of a role are made from.

    Attributes
    ----------
    revision : Revision or None
        None where the spec names one that is not kept: pods stay as they are, and their number follows the spec.
    known : mapping
        All revisions of the role by name, the one that the spec asks for included, with their marks as they are now.
    stale : tuple of Revision
        Those of them whose objects have other marks.
    failed : str
        The revision in whose place pods have an earlier one; empty if they have what the spec asks for.
    partner : str
        The role that has failed, where this one only goes back with it.
    asked : str
        The revision that the spec asks for; empty where that is not known.
    runs, begun : str
        The revision that the workload has, and since when, as far as they are known.
    """

    revision: Revision | None
    known: Mapping[str, Revision]
    stale: tuple[Revision, ...] = ()
    failed: str = ""
    partner: str = ""
    asked: str = ""
    runs: str = ""
    begun: str = ""

    @property
    def is_held(self) -> bool:
        """Whether pods keep a revision that the spec names, and not the one that it asks for otherwise."""
        name = self.revision.name if self.revision else ""
        return bool(name and self.asked and name != self.asked and not self.failed)

    @property
    def has_worked(self) -> bool:
        """Whether all pods were ready with this revision since they have it; so it is where nothing is known of revisions."""
        has_it = self.revision is not None and self.revision.name == self.runs
        return not self.known or (
            has_it and _has_worked(self.runs, self.begun, _last_completed(self.known.values()))
        )

    @property
    def kept(self) -> list[str]:
        """Names of revisions that may be needed again: in use, asked for, and the last one that worked."""
        last = _last_completed(self.known.values())
        return [
            each for each in {self.revision and self.revision.name, self.failed, last and last.name} if each
        ]


def settle(
    cr: EldrDeployment,
    wanted: Mapping[str, Revision],
    live: Snapshot,
    plan: Plan,
    now: datetime,
    *,
    refused: Mapping[str, Refusal],
) -> dict[str, Choice]:
    """Choose a revision for each role.

    Where one engine role goes back to another KV key, the other one goes with it, if it has a revision of that key that worked:
    otherwise no KV could move.

    Parameters
    ----------
    wanted : mapping
        Role to the revision that the spec asks for.
    refused : mapping
        Role to why its pods cannot be created, and since when in this rollout.
    """
    chosen = {
        role: _choose(cr, revision, live, plan.revisions[role], now, refusal=refused.get(role, NOT_REFUSED))
        for role, revision in wanted.items()
    }
    for role, other in (_ENGINES, _ENGINES[::-1]):
        back, partner = chosen.get(role), chosen.get(other)
        if (
            back is None
            or partner is None
            or not back.failed
            or partner.failed
            or _spec(cr, other).revision
            or _key(wanted[role]) != _key(wanted[other])
            or _key(back.revision) == _key(wanted[other])
        ):
            continue
        worked = [each for each in partner.known.values() if _key(each) == _key(back.revision)]
        if last := _last_completed(worked):
            chosen[other] = partner._replace(revision=last, failed=wanted[other].name, partner=role)
    return chosen


def stays(cr: EldrDeployment, live: Snapshot, role: str, existing: Sequence[Revision]) -> Revision | None:
    """Return what the pods of a role keep where nothing else can be had; None if there is nothing to keep.

    Engines whose workload somebody has deleted come back with what worked last.
    """
    is_gone = role in _ENGINES and revisions.live_workload(cr, live, role) is None
    return _last_completed(existing) if is_gone else revisions.in_use(cr, live, role, existing)


def unknown(cr: EldrDeployment, role: str, choice: Choice) -> Unwritten:
    """Return what is wrong with a spec that names a revision that is not kept."""
    kept = ", ".join(sorted(choice.known))
    text = (
        f"{role}.rollout.revision {_spec(cr, role).revision} is not kept; there are {kept}. "
        "Name one of these, or leave it empty for what the spec asks for"
    )
    return Unwritten(revisions.KIND, role, REFUSED, text)


def message(role: str, choice: Choice) -> str:
    """Return in words that a role has not the revision that its spec asks for."""
    used = choice.revision.name if choice.revision else ""
    if choice.partner:
        return f"{role}: back to revision {used} too, the one that {choice.partner} can exchange KV with"
    return (
        f"{role}: no pod became available with revision {choice.failed}, back to {used}. "
        f"Change the spec, or set {role}.rollout.onFailure Wait to try the same again"
    )


def held(role: str, choice: Choice) -> str:
    """Return in words that a role keeps the revision that its spec names."""
    name = choice.revision.name if choice.revision else ""
    return (
        f"{role}: keeps revision {name}, as {role}.rollout.revision says; the spec asks for {choice.asked}. "
        "eldr rollout resume rolls to that"
    )


def _choose(
    cr: EldrDeployment,
    wanted: Revision,
    live: Snapshot,
    existing: Sequence[Revision],
    now: datetime,
    *,
    refusal: Refusal,
) -> Choice:
    spec = _spec(cr, wanted.role)
    known = {each.name: each for each in (*existing, wanted)}
    workload = revisions.live_workload(cr, live, wanted.role)
    name = revisions.name_of(workload) if workload is not None else ""
    begun = revisions.begun_of(workload) if workload is not None else ""
    last = _last_completed(known.values())
    marked = {
        name: each if _is_remembered(cr, each, wanted) else each._replace(failed="")
        for name, each in known.items()
    }
    if workload is not None and name in marked and not _has_worked(name, begun, last):
        pods, at = _of(marked[name], live.pods), clock.stamp(_works_at(begun, last, now))
        if _is_complete(workload, pods, now, is_refused=rollout.is_refused(refusal, now)):
            marked[name] = marked[name]._replace(completed=at, failed="")
        elif _may_fail(spec, name, wanted, last) and not marked[name].failed and _rolls(cr, wanted.role):
            allowed = timedelta(seconds=rollout.deadline_seconds(spec, marked[name].template))
            if _has_failed(workload, pods, refusal, now, allowed):
                marked[name] = marked[name]._replace(failed=at)
        last = _last_completed(marked.values())
    stale = tuple(each for each in marked.values() if each != known[each.name])
    choice = Choice(marked[wanted.name], marked, stale, runs=name, begun=begun)
    if spec.revision:
        return choice._replace(revision=marked.get(spec.revision), asked=wanted.name)
    if marked[wanted.name].failed and last is not None and last.name != wanted.name:
        return choice._replace(revision=last, failed=wanted.name)
    return choice


def _is_remembered(cr: EldrDeployment, revision: Revision, wanted: Revision) -> bool:
    """Tell whether a failure still counts; between two maintenance windows only images differ, and the spec is the same."""
    between = cr.spec.update == "Window" and revision.inputs == wanted.inputs
    return (revision.name == wanted.name or between) and _spec(cr, wanted.role).on_failure != "Wait"


def _may_fail(spec: RolloutSpec, name: str, wanted: Revision, last: Revision | None) -> bool:
    waits = spec.on_failure == "Wait" or spec.pause == "Enabled" or spec.revision
    return name == wanted.name and last is not None and name != last.name and not waits


def _rolls(cr: EldrDeployment, role: str) -> bool:
    """Tell whether any pod is to get another template, by the partition of decode."""
    return role != contract.ROLE_DECODE or cr.spec.decode.rollout.partition < cr.spec.decode.replicas


def _works_at(begun: str, last: Revision | None, now: datetime) -> datetime:
    """Return now, or what comes after all that was marked: the clock may have been ahead then."""
    completed = clock.read(last.completed) if last is not None else None
    after = completed + timedelta(seconds=1) if completed else now
    return max(now, clock.read(begun) or now, after)


def _is_complete(
    workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], now: datetime, *, is_refused: bool
) -> bool:
    """Tell whether all pods have the newest template and are available, but for those that have had no place for a while.

    A role that asks for more than fits would have no revision to go back to otherwise.
    """
    status, replicas = workload.get("status") or {}, workload["spec"].get("replicas", 1)
    existing, available = status.get("replicas", 0), status.get("availableReplicas", 0)
    is_rolled = status.get("updatedReplicas", 0) == existing
    is_scaled = existing == replicas or (existing < replicas and is_refused)
    waiting = rollout.waiting_in_vain(pods, now)
    is_up = available and available + waiting == existing
    return bool(is_observed(workload) and is_rolled and is_scaled and is_up)


def _of(revision: Revision, pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pods of a revision; those from before revisions were named have none."""
    return [
        pod
        for pod in pods
        if revisions.revision_of(pod) == revision.name and "deletionTimestamp" not in pod["metadata"]
    ]


def _has_failed(
    workload: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    refusal: Refusal,
    now: datetime,
    allowed: timedelta,
) -> bool:
    """Tell whether no pod is available and one has given up, or none is ready and one, on a node, has not been in its time, or is refused.

    A pod that finds no node says nothing about its revision, nor does one that was evicted.
    """
    is_any_available = any(rollout.is_available(workload, pod, now) for pod in pods)
    if not is_any_available and any(map(rollout.has_given_up, pods)):
        return True
    since = now - allowed
    unready = [(pod, moment) for pod in pods if (moment := rollout.unready_since(pod)) is not None]
    if len(unready) < len(pods):
        return False
    return bool(refusal.since and refusal.since < since) or any(
        moment < since and pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") != "Failed"
        for pod, moment in unready
    )


def _spec(cr: EldrDeployment, role: str) -> RolloutSpec:
    if role == contract.ROLE_PREFILL:
        return cr.spec.prefill.rollout
    if role == contract.ROLE_DECODE:
        return cr.spec.decode.rollout
    return RolloutSpec(on_failure="Wait")  # routers of a Deployment: no field says how they are rolled back


def _last_completed(known: Iterable[Revision]) -> Revision | None:
    completed = [each for each in known if each.completed]
    return max(completed, key=lambda each: (each.completed, each.number), default=None)


def _has_worked(name: str, begun: str, last: Revision | None) -> bool:
    """Tell whether a revision that pods have since ``begun`` is the last one with which all were ready, and was it since."""
    return last is not None and last.name == name and last.completed >= begun


def _key(revision: Revision | None) -> str:
    labels = revision.template["metadata"].get("labels") or {} if revision else {}
    return str(labels.get(contract.LABEL_KV, ""))
