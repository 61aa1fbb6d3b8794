"""What the operator says itself: conditions that are not as they should be. Pure."""

from __future__ import annotations

from datetime import datetime

from eldr.compare import hold
from eldr.doctor.facts import Facts, Finding, Said
from eldr.status.fields import inside
from eldr.status.tell import tell

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
    "InsufficientCapacity": "add nodes, or lower gpus or resources",
    "PodsRefused": "raise the quota that the message names, or lower replicas or resources",
    "Missing": "look at a prefill engine's log: is the plug-in loaded, does it see the routing of the model?",
    "Unreadable": "use the same version for operator, router and engine plug-in",
    "NotCounted": "look for ELDR in the log of the engines that the message names, and restart their pods",
    "Suspended": "set refit.suspend to Disabled to have the traffic fitted",
    "RolledBack": "correct the spec as the message says; eldr rollout status has the revisions",
    "RoutersUnreachable": f"let the operator reach port 9100 of routers, see {_PAGE}",
}
_WAITS = {"Fitting", "WaitingForRecords", "CoolDown", "BudgetSpent", "OutsideMaintenanceWindow", "RollBack"}
"""Reasons of DriftDetected with which the operator acts by itself."""


def look(facts: Facts, now: datetime) -> Said:
    """Say which conditions are not as they should be, and whether the operator looks at all."""
    overview = tell(facts.deployment, None, now)
    for note in overview.notes:
        remedy = "see kubectl get pods -A -l app.kubernetes.io/name=eldr, and the log of the operator"
        yield Finding("operator", note, remedy)
    for found in overview.problems:
        if found.type == "DriftDetected" and found.reason in _WAITS:
            continue
        remedy = _REMEDIES.get(found.reason, f"see {found.reason} in {_PAGE}")
        yield Finding(
            f"condition {found.type}",
            f"{found.reason}: {found.message}",
            remedy,
            reason=found.reason,
            is_symptom=found.reason in _SYMPTOMS,
        )
    yield from _comparison(facts, now)
    status = inside(facts.deployment, "status")
    if overview.ready is None and status:
        yield Finding("condition Ready", "there is none", "is the operator running?")


def _comparison(facts: Facts, now: datetime) -> Said:
    """Say what a comparison that was killed has left: until it is undone, nothing is fitted."""
    left = hold.of(facts.deployment)
    if left is not None and not left.is_alive(now):
        problem = f"an eldr compare that ended without restoring has left policy {left.now['policy']}, and fits suspended"
        yield Finding(f"annotation {hold.ANNOTATION}", problem, f"eldr compare {facts.name} --restore")
