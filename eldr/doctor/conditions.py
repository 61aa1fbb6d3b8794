"""What the operator says itself: conditions that are not as they should be. Pure."""

from __future__ import annotations

from datetime import datetime

from eldr import contract
from eldr.doctor.facts import OPERATOR_REMEDY, Facts, Finding, Said, Skipped, Unseen
from eldr.status import hold
from eldr.status.fields import inside, moment, objects, text
from eldr.status.summary import summarize

_SYMPTOMS = frozenset(
    {"NoPrefillEngine", "NoDecodeEngine", "NoRouter", "PodsNotReady", "RolloutInProgress", "NoReadyRouters"}
    | {"ProgressDeadlineExceeded", "RoutersUnreachable"}
)
"""Reasons that say what does not work, not why."""
_PAGE = "docs/reference/conditions.md"
_REMEDIES = {
    "ImagePull": "correct engine.image or router.image; pull Secrets go through podTemplate.spec.imagePullSecrets",
    "CrashLoop": "read the log of the container that the message names",
    "ContainerConfig": "create the Secret or ConfigMap that the message names",
    "ClaimPending": "create the claim that the message names, or correct its name",
    "ChildRefused": "correct the field that the message names; if it names a quota or a policy, change that",
    "InsufficientCapacity": "add nodes, or lower gpus or resources",
    "PodStuck": "delete the lost node or taint it, as the message says; a finalizer must be removed by its owner",
    "PodsFailed": "free what the message names on the nodes, or correct resources; see kubectl describe pod",
    "PodsRefused": "raise the quota that the message names, or lower replicas or resources",
    "Missing": "look at a prefill engine's log: it says whether the plug-in is loaded and sees the routing of the model",
    "Unreadable": "use the same version for operator, router and engine plug-in",
    "NotCounted": "look for ELDR in the log of the engines that the message names, and restart their pods",
    "SpecUnreadable": "upgrade the operator, or change the field that the message names",
    "Suspended": "set refit.suspend to Disabled to have the traffic fitted",
    "RolledBack": "correct the spec as the message says; eldr rollout status has the revisions",
    "RoutersUnreachable": f"let the operator reach port 9100 of routers, see {_PAGE}",
    "RouterUnauthorized": "delete the pods that the message names, or wait up to ten minutes for their next token",
    "RouterTokenRefused": "delete the Secret that the message names; the operator creates it again, and no pod restarts",
}
_ALSO = {"Progressing": "False", "Degraded": "True"}
"""Conditions of which `eldr status` tells elsewhere, and what is wrong with them."""
_WAITS = {"Fitting", "WaitingForRecords", "CoolDown", "BudgetSpent", "OutsideMaintenanceWindow", "RollBack"}
"""Reasons of DriftDetected with which the operator acts by itself."""


_LEASE_SECONDS = 60
"""It lasts 15 s; the clock of whoever asks may differ."""


def look(facts: Facts, now: datetime) -> Said:
    """Say which conditions are not as they should be, and whether the operator looks at all."""
    overview = summarize(facts.deployment, None, now)
    of_lease = list(_lease(facts, now))
    yield from of_lease
    # without an operator there is no other reason
    is_absent = any(isinstance(one, Finding) for one in of_lease)
    for note in () if is_absent else overview.notes:
        yield Finding("operator", note, OPERATOR_REMEDY)
    status = inside(facts.deployment, "status")
    kinds = {text(one, "type"): one for one in objects(status, "conditions")}
    bad = [
        (problem.type, problem.reason, problem.message)
        for problem in overview.problems
        if problem.type != "DriftDetected" or problem.reason not in _WAITS
    ]
    for kind, wrong in _ALSO.items():
        one = kinds.get(kind, {})
        if one.get("status") == wrong:
            bad.append((kind, text(one, "reason") or "", text(one, "message") or ""))
    ready = overview.ready
    if ready is not None and ready.status != "True" and ready.reason not in {reason for _, reason, _ in bad}:
        bad.append((ready.type, ready.reason, ready.message))  # as where the operator cannot look
    reported: set[tuple[str, str]] = set()
    for kind, reason, message in bad:
        if (reason, message) in reported:
            continue
        reported.add((reason, message))
        remedy = _REMEDIES.get(reason, f"see {reason} in {_PAGE}")
        yield Finding(
            f"condition {kind}",
            f"{reason}: {message}",
            remedy,
            reason=reason,
            is_symptom=reason in _SYMPTOMS,
        )
    yield from _comparison(facts, now)
    yield from _replicas(facts)
    if ready is None and status:
        yield Finding("condition Ready", "there is none", OPERATOR_REMEDY)


def _replicas(facts: Facts) -> Said:
    """Say which replicas of the spec have no effect because a person has set others; an autoscaler is meant to."""
    for role in (contract.ROLE_PREFILL, contract.ROLE_DECODE):
        state = inside(facts.deployment, "status", role)
        by, asked, desired = text(state, "scaledBy"), state.get("specReplicas"), state.get("desired")
        if by and by != contract.AUTOSCALER and asked is not None and asked != desired:
            scaler = f"{facts.name}-{role}"
            yield Finding(
                f"spec.{role}.replicas",
                f"{asked} is ignored: {by} has set {desired} on EldrScaler {scaler}",
                f"to hand the replicas back to the spec: kubectl annotate eldrscaler/{scaler} {contract.ANNOTATION_REPLICAS}={contract.HANDED_BACK} --overwrite",
            )


def _lease(facts: Facts, now: datetime) -> Said:
    """Say where no operator renews the Lease of the namespace: then conditions are those of long ago."""
    if isinstance(facts.lease, Unseen):
        yield Skipped(facts.lease.why)
        return
    spec = inside(facts.lease or {}, "spec")
    holder, renewed = text(spec, "holderIdentity"), moment(spec, "renewTime")
    name, problem = f"Lease {contract.SERVED_LEASE}", ""
    if facts.lease is None:
        problem = f"{name} does not exist: no operator serves namespace {facts.namespace}"
    elif not holder:
        problem = f"{name} is released: the operator that served namespace {facts.namespace} has ended"
    elif renewed is None or (now - renewed).total_seconds() > _LEASE_SECONDS:
        age = "never" if renewed is None else f"{(now - renewed).total_seconds():.0f} s ago"
        problem = f"{name} was last renewed {age}: the operator of release {holder} does not run"
    if problem:
        remedy = f"install or start the operator, and have it watch this namespace; {OPERATOR_REMEDY}"
        yield Finding("operator", f"{problem}, and conditions may be out of date", remedy)


def _comparison(facts: Facts, now: datetime) -> Said:
    """Say what a comparison that was killed has left: until it is undone, nothing is fitted."""
    left = hold.of(facts.deployment)
    if left is not None and not left.is_alive(now):
        problem = f"an eldr compare that ended without restoring has left policy {left.now['policy']}, and fits suspended"
        yield Finding(f"annotation {hold.ANNOTATION}", problem, f"eldr compare {facts.name} --restore")
