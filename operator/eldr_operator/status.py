"""Observations -> status of an EldrDeployment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import clock
from eldr_operator.conditions import ROLLED_BACK, UPDATE_AVAILABLE, Condition, merged
from eldr_operator.errors import Problem
from eldr_operator.locality import drift_status, step_time
from eldr_operator.locality.outcome import Outcome
from eldr_operator.locality.routing import Table
from eldr_operator.models import CentroidSet, EldrDeployment
from eldr_operator.readiness import summed_up
from eldr_operator.unwritten import REFUSED
from eldr_operator.validation.spec import blocked_roles
from eldr_operator.workloads import rollback
from eldr_operator.workloads.roles import Role, Workloads

Object = dict[str, Any]
_ALL_NEWEST = "all pods run the newest template"


def status(
    cr: EldrDeployment, problems: Sequence[Problem], running: Workloads, outcome: Outcome, now: datetime
) -> Object:
    """Return the status; equal observations give an equal status."""
    decision, table = outcome.look.decision, outcome.memory.table
    router: Object = {
        "desired": running.router.desired,
        "ready": running.router.ready,
        "epoch": table.epoch,
        "acks": f"{decision.acks}/{len(outcome.look.routers)}",
    }
    router |= _revision(running, contract.ROLE_ROUTER)
    if policies := {view.policy for view in outcome.look.routers if view.policy}:
        router["policyInEffect"] = ",".join(sorted(policies))
    generation, scheme = cr.metadata.generation, "https" if cr.spec.router.tls_secret else "http"
    made: Object = {
        "observedGeneration": generation,
        "conditions": merged(
            cr.status.get("conditions", ()), _conditions(cr, problems, running, outcome), generation, now
        ),
        "model": cr.served_model,
        "url": f"{scheme}://{cr.name}.{cr.namespace}.svc",
        "prefill": _role(running, contract.ROLE_PREFILL),
        "decode": _role(running, contract.ROLE_DECODE),
        "router": router,
        "centroids": _centroids(table),
        "locality": step_time.status(cr, outcome.look.routers) | drift_status.fields(cr, outcome),
        "refit": outcome.memory.refit.to_json(),
        "history": [entry.to_json() for entry in outcome.memory.history],
    }
    return made


def unknown(cr: EldrDeployment, reason: str, why: str, now: datetime) -> Object:
    """Return the status of a deployment that is not looked after: what was last observed, and why it may be wrong by now."""
    before = cr.status.get("conditions", ())
    ready = Condition("Ready", "Unknown", reason, why)
    kept = [condition for condition in before if condition["type"] != ready.type]
    return {**cr.status, "conditions": [*merged(before, [ready], cr.metadata.generation, now), *kept]}


def _role(running: Workloads, name: str) -> Object:
    role = running.roles[name]
    made = {"desired": role.desired, "ready": role.ready, "summary": f"{role.ready}/{role.desired}"}
    by = running.scaled_by.get(name)
    ignored = running.spec_replicas.get(name)
    made |= {"specReplicas": ignored} if ignored is not None else {}
    return made | _revision(running, name) | ({"scaledBy": by} if by else {})


def _revision(running: Workloads, name: str) -> Object:
    choice = running.revisions.get(name)
    return {"revision": choice.revision.name} if choice and choice.revision else {}


def _update(running: Workloads) -> Condition:
    plan = running.plan
    if not plan.newer and plan.kept_back:
        text = (
            f"pods of {', '.join(plan.kept_back)} keep the template of another build of the operator, with the same images; "
            "spec.update Immediate rolls them now"
        )
        return Condition(UPDATE_AVAILABLE, "True", "NewerTemplates", text)
    if not plan.newer:
        text = "pods have this operator's images and templates"
        return Condition(UPDATE_AVAILABLE, "False", "UpToDate", text)
    changes = [f"{now} to {then}" for now, then in plan.newer]
    how = "spec.update Immediate rolls them now"
    if plan.failed:
        how = f"revision {plan.failed} has failed with them, and nothing tries them again until the spec changes"
    text = f"pods keep the images that they were made with: {', '.join(changes)}; {how}"
    return Condition(UPDATE_AVAILABLE, "True", "NewerImages", text)


def _conditions(
    cr: EldrDeployment, problems: Sequence[Problem], running: Workloads, outcome: Outcome
) -> list[Condition]:
    roles = [role.condition for role in running.roles.values()]
    if refused := _unauthorized(outcome):
        roles[-1] = refused
    config, available = _config(problems, running, outcome), _available(cr, running, outcome)
    model = [running.model] if running.model is not None else []
    progressing = _with_held(
        _progressing(running, outcome), blocked_roles(cr, problems) & {*running.revisions}
    )
    # what runs goes on while another revision comes: that is no fault, and Progressing tells it
    is_cause = available.status != "True" or not _is_downloading(running)
    causes = (config, *(model if is_cause else ()))
    summary = summed_up(causes, progressing, available, roles) or Condition(
        "Ready", "True", "AllReady", _all_ready(running)
    )
    centroids, drift = drift_status.conditions(outcome)
    return [
        summary._replace(type="Ready"),
        available,
        progressing,
        _degraded(running, available),
        *roles,
        config,
        *model,
        centroids,
        outcome.signatures,
        drift,
        _update(running),
    ]


def _is_downloading(running: Workloads) -> bool:
    return running.model is not None and running.model.reason == "Downloading"


def _all_ready(running: Workloads) -> str:
    routers = f"{running.router.ready} router{'s' * (running.router.ready != 1)}"
    return f"{running.prefill.ready} prefill, {running.decode.ready} decode, {routers} ready"


def _available(cr: EldrDeployment, running: Workloads, outcome: Outcome) -> Condition:
    # Any ready router serves, also one that a change of placement is about to replace.
    counts = {"decode engine": running.decode.ready, "router": len(outcome.look.routers)}
    beside = {view.pod.is_beside_engine for view in outcome.look.routers} or {
        cr.spec.router.placement == "Sidecar"
    }
    if False not in beside:  # routers of their own send requests whole to decode engines
        counts = {"prefill engine": running.prefill.ready, **counts}
    for name, ready in counts.items():
        if ready == 0:
            reason = "No" + "".join(word.capitalize() for word in name.split())
            text = f"no {name} is ready: requests cannot be served"
            # a router that is not ready keeps its pod, which is that of a prefill engine, from being ready
            return _unavailable(None if name == "decode engine" else outcome, reason, text)
    if not outcome.look.can_serve:
        text = "no router reaches a decode engine: requests cannot be served"
        return _unavailable(outcome, "NoDecodeEngine", text)
    return Condition("Available", "True", "MinimumReplicasAvailable", "requests can be served")


def _unavailable(outcome: Outcome | None, reason: str, text: str) -> Condition:
    """Return that requests cannot be served; where the API server refuses routers, that is the reason."""
    if outcome is not None and (refused := _unauthorized(outcome)):
        return refused._replace(type="Available", message=f"{text}; {refused.message}")
    return Condition("Available", "False", reason, text)


def _unauthorized(outcome: Outcome) -> Condition | None:
    """Return that the API server refuses routers; None where it does not."""
    if not (refused := outcome.look.unauthorized):
        return None
    names = ", ".join(view.pod.name for view in refused)
    text = (
        f"the API server refuses routers {names} ({refused[0].complaint}), so they do not see which engines there are. "
        f"Delete these pods (kubectl delete pod {refused[0].pod.name}), or wait up to ten minutes for another token. "
        "With 403, check what keeps their RoleBinding from taking effect"
    )
    return Condition("RouterReady", "False", "RouterUnauthorized", text)


def _progressing(running: Workloads, outcome: Outcome) -> Condition:
    if left := [*running.unwritten, *outcome.unwritten]:
        return Condition("Progressing", "False", left[0].reason, "; ".join(each.message for each in left))
    if running.model is not None and running.model.status != "True":
        status = "True" if _is_downloading(running) else "False"
        return running.model._replace(type="Progressing", status=status)
    if failed := {role: choice for role, choice in running.revisions.items() if choice.failed}:
        text = "; ".join(rollback.message(role, choice) for role, choice in failed.items())
        return Condition("Progressing", "False", ROLLED_BACK, text)
    roles = running.roles
    # a revision that has not worked yet may still fail; pods that are lost after it has are no rollout
    over = {
        name for name, choice in running.revisions.items() if choice.has_worked and roles[name].is_current
    }
    if late := [
        role
        for name, role in roles.items()
        if role.late and name not in over and not role.is_ready and not role.is_paused
    ]:
        text = "; ".join(f"{_of(role)}: {role.late}" for role in late)
        return Condition("Progressing", "False", "ProgressDeadlineExceeded", text)
    if waiting := [role for role in roles.values() if not role.is_current]:
        text = "; ".join(f"{_of(role)}: {_rollout(role)}" for role in waiting)
        if all(role.is_paused for role in waiting):
            return Condition("Progressing", "Unknown", "RolloutPaused", text)
        return Condition("Progressing", "True", "RolloutInProgress", text)
    if unready := [
        roles[name] for name in running.revisions if name not in over and not roles[name].is_ready
    ]:
        text = "; ".join(
            f"{_of(role)}: {role.ready} of {role.desired} pods ready with the newest template"
            for role in unready
        )
        return Condition("Progressing", "True", "RolloutInProgress", text)
    if settling := [
        roles[name]
        for name in running.revisions
        if name not in over and roles[name].available < roles[name].desired
    ]:
        text = "; ".join(
            f"{_of(role)}: {role.available} of {role.desired} pods have been ready for rollout.minReadySeconds"
            for role in settling
        )
        return Condition("Progressing", "True", "RolloutInProgress", text)
    if kept_back := [rollback.held(role, each) for role, each in running.revisions.items() if each.is_held]:
        return Condition("Progressing", "True", "RevisionHeld", "; ".join(kept_back))
    if kept := [role for role in (running.prefill, running.decode) if role.kept]:
        text = "; ".join(
            f"{_of(role)}: ordinals below {role.kept} keep the template that they have" for role in kept
        )
        return Condition("Progressing", "True", "RolloutComplete", text + _ignored(running))
    return Condition("Progressing", "True", "RolloutComplete", f"{_ALL_NEWEST}{_ignored(running)}")


def _with_held(progressing: Condition, held: Collection[str]) -> Condition:
    """Return the condition with the roles that keep their template because a field that it is made from cannot be used."""
    if not held or progressing.status != "True":
        return progressing
    text = progressing.message.replace(_ALL_NEWEST, "all other pods run the newest template")
    names = ", ".join(sorted(held))
    return progressing._replace(
        message=f"{text}; pods of {names} keep the template that they have until ConfigValid is True"
    )


def _ignored(running: Workloads) -> str:
    """Return which replicas of the spec have no effect because a person has set others; where an autoscaler has, that is meant."""
    texts = [
        f"; spec.{role}.replicas {replicas} is ignored: {by} has set {running.roles[role].desired} on the EldrScaler, "
        f"whose annotation {contract.ANNOTATION_REPLICAS}={contract.HANDED_BACK} hands them back"
        for role, replicas in running.spec_replicas.items()
        if (by := running.scaled_by.get(role)) != contract.AUTOSCALER
        and replicas != running.roles[role].desired
    ]
    return "".join(texts)


def _degraded(running: Workloads, available: Condition) -> Condition:
    if available.status == "True" and running.prefill.desired and not running.prefill.ready:
        text = "no prefill engine is ready: routers send requests whole to decode engines"
        return Condition("Degraded", "True", "NoPrefillEngine", text)
    if running.unpaired:
        text = (
            f"no ready prefill engine may hand KV over to {', '.join(running.unpaired)}: routers send requests whole there. "
            "A rollout ends that, unless images or arguments of the two roles differ in what must be alike"
        )
        return Condition("Degraded", "True", "NoMatchingPrefill", text)
    if running.mixed_images:
        text = (
            f"engines run different images by the same name, and may refuse each other's KV: {running.mixed_images}. "
            "Name the image by its digest"
        )
        return Condition("Degraded", "True", "MixedImages", text)
    return Condition("Degraded", "False", "AsExpected", "no decode engine lacks a prefill engine of its kind")


def _of(role: Role) -> str:
    return role.type.removesuffix("Ready").lower()


def _rollout(role: Role) -> str:
    text = "not all pods run the newest template"
    if role.is_paused:
        return f"{text}; rollout.pause Disabled goes on"
    if role.gap_at is not None:
        gap = f"its only pod ends at {clock.stamp(role.gap_at)}, and no engine of this role serves until its successor is ready"
        return f"{text}; {gap}; rollout.pause Enabled keeps it"
    if not role.has_gaps:
        return text
    text += "; each pod ends before its successor starts, as with prefill.rollout.maxSurge 0 or where no node or quota has room for one more"
    return f"{text}: no engine of this role serves meanwhile" if role.desired == 1 else text


def _config(problems: Sequence[Problem], running: Workloads, outcome: Outcome) -> Condition:
    if problems:
        text = "; ".join(map(str, problems))
        return Condition("ConfigValid", "False", problems[0].reason, f"{text}. What ran before goes on")
    left = (*running.unwritten, *outcome.unwritten)
    if refused := [each.message for each in left if each.reason == REFUSED]:
        return Condition("ConfigValid", "False", "ChildRefused", "; ".join(refused))
    return Condition("ConfigValid", "True", "Valid", "every field is valid")


def _centroids(table: Table) -> Object:
    made: Object = {}
    if table.active is not None:
        made["active"] = _set(table.active)
        if table.activated_at is not None:
            made["active"]["activatedAt"] = clock.stamp(table.activated_at)
    if table.previous is not None:
        made["previous"] = _set(table.previous)
    if table.staged is not None:
        made["staged"] = _set(table.staged)
        if table.staged_at is not None:
            made["staged"]["since"] = clock.stamp(table.staged_at)
    return made


def _set(pointer: CentroidSet) -> Object:
    return {"fit": pointer.fit, "digest": pointer.digest, "k": pointer.k}
