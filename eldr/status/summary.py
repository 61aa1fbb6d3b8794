"""An EldrDeployment and its EldrFits -> what there is to tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from eldr.status import hold, served
from eldr.status.chart import COLUMNS, HALF_HOUR
from eldr.status.fields import Object, decimal, inside, integer, moment, objects, text
from eldr.status.overview import (
    DELETED,
    Centroids,
    Condition,
    Drift,
    Fit,
    HalfHour,
    NextFit,
    Overview,
    Policy,
    Saving,
)

_SHOULD_BE_TRUE: Final = (
    *("ConfigValid", "Available", "PrefillReady", "DecodeReady", "RouterReady"),
    *("CentroidsActive", "SignaturesReported"),
)
_NO_NEWS: Final = {"Bootstrapping", "LearnedPrior", "Staging", "PolicyIgnoresCentroids", "NoTraffic"}
"""Reasons of conditions that are not True and need nobody."""
_WITHOUT_SET: Final = {"LearnedPrior", "PolicyIgnoresCentroids"}
"""Reasons for which a policy lacks nothing though no set serves."""
_HARMS: Final = {"Regresses", "PinnedRegresses", "PriorDecays", "KMismatch", "PinNotFound", "PinNotAccepted"}
_HARMS_TOO: Final = {"Refused", "AckTimeout", "RouterComplaint"}
"""Reasons of CentroidsActive that somebody should see though it is True."""
_DRIFT_STUCK: Final = {"NoBaseline", "BaselineUnusable"}
_ROLES: Final = ("prefill", "decode", "router")
_SILENT: Final = "the operator has written no status yet: is it running, and does it watch this namespace?"
_BEHIND: Final = "the operator has not seen the last change of the spec yet: what follows is of before it"


def summarize(
    deployment: Object, fits: Iterable[Object] | None, now: datetime, notes: Iterable[str] = ()
) -> Overview:
    """Return the overview of a deployment.

    Parameters
    ----------
    deployment : dict
        The EldrDeployment; whatever is missing or foreign in it counts as not known.
    fits : iterable of dict or None
        EldrFits of the namespace; those of other deployments are left out. None: they could not be read.
    notes : iterable of str
        What could not be read.
    """
    metadata, spec, status = (inside(deployment, key) for key in ("metadata", "spec", "status"))
    name = text(metadata, "name") or "?"
    conditions = {one.type: one for one in map(_condition, objects(status, "conditions")) if one is not None}
    locality, held = inside(status, "locality"), hold.of(deployment)
    spans = served.spans(objects(status, "history"))
    return Overview(
        name=name,
        namespace=text(metadata, "namespace") or "?",
        at=now,
        model=text(inside(spec, "model"), "uri"),
        served_as=text(status, "model"),
        url=text(status, "url"),
        needs_key=bool(text(inside(spec, "router"), "apiKeysSecret")),
        ready=conditions.get("Ready"),
        pods={role: _pods(inside(status, role)) for role in _ROLES if inside(status, role)},
        policy=_policy(inside(spec, "router"), inside(status, "router"), conditions.get("CentroidsActive")),
        centroids=_centroids(status, spans),
        saving=Saving(
            now_percent=decimal(locality, "savingPercent"),
            error_percent=decimal(locality, "savingErrorPercent"),
            predicted_percent=decimal(locality, "predictedSavingPercent"),
            expert_share_percent=decimal(locality, "expertSharePercent"),
            message=text(locality, "message"),
        ),
        drift=_drift(locality, conditions.get("DriftDetected")),
        fits=_fits(name, text(metadata, "uid"), fits, spans),
        next_fit=_next_fit(inside(status, "refit")),
        problems=tuple(one for one in _problems(conditions) if not (held and one.reason == "Suspended")),
        notes=(*_lag(metadata, status), *notes),
        comparison=None if held is None else _compared(name, held, now),
    )


def _condition(fields: Object) -> Condition | None:
    kind, status = text(fields, "type"), text(fields, "status")
    if kind is None or status is None:
        return None
    return Condition(
        kind,
        status,
        text(fields, "reason") or "",
        text(fields, "message") or "",
        moment(fields, "lastTransitionTime"),
    )


def _pods(role: Object) -> str:
    ready, desired = integer(role, "ready"), integer(role, "desired")
    return text(role, "summary") or f"{'?' if ready is None else ready}/{'?' if desired is None else desired}"


def _policy(spec: Object, router: Object, active: Condition | None) -> Policy:
    wanted = text(spec, "policy")
    in_effect = tuple(filter(None, (text(router, "policyInEffect") or "").split(",")))
    differs = bool(in_effect) and in_effect != (wanted,)
    without = active is not None and active.status != "True" and active.reason not in _WITHOUT_SET
    if active is None or not (differs or without):
        return Policy(wanted, in_effect, None, None)
    if active.status == "True":
        return Policy(wanted, in_effect, "Switching", "routers are taking over the policy of the spec")
    return Policy(wanted, in_effect, active.reason, active.message)


def _centroids(status: Object, spans: served.Spans) -> Centroids:
    sets, router = inside(status, "centroids"), inside(status, "router")
    active = inside(sets, "active")
    fit = text(active, "fit")
    known = [span.since for span in spans.get(fit or "", ()) if span.until is None]
    return Centroids(
        fit=fit,
        since=moment(active, "activatedAt") or next(iter(known), None),
        k=integer(active, "k"),
        epoch=integer(router, "epoch"),
        digest=text(active, "digest"),
        acks=text(router, "acks"),
        previous=text(inside(sets, "previous"), "fit"),
        staged=text(inside(sets, "staged"), "fit"),
    )


def _drift(locality: Object, condition: Condition | None) -> Drift:
    return Drift(
        condition,
        decimal(locality, "driftScore"),
        integer(locality, "windowRequests"),
        tuple(_day(inside(locality, "driftDay"))),
    )


def _day(day: Object) -> Iterator[HalfHour]:
    since = moment(day, "since")
    if since is None:
        return
    for number, word in enumerate((text(day, "scores") or "").split()[:COLUMNS]):
        score = decimal({"score": word}, "score")
        if score is not None:
            yield HalfHour(since + number * HALF_HOUR, score)


def _next_fit(refit: Object) -> NextFit | None:
    time = moment(refit, "nextScheduleTime")
    return None if time is None else NextFit(time, text(refit, "schedule"))


def _fits(name: str, uid: str | None, fits: Iterable[Object] | None, spans: served.Spans) -> tuple[Fit, ...]:
    known = {one.name: one for one in (_fit(fit, spans) for fit in fits or () if _is_of(fit, name, uid))}
    left = None if fits is None else DELETED
    unlisted = [Fit(fit, verdict=left, served=tuple(some)) for fit, some in spans.items() if fit not in known]
    return tuple(sorted([*known.values(), *unlisted], key=_began, reverse=True))


def _fit(fit: Object, spans: served.Spans) -> Fit:
    metadata, spec, status = (inside(fit, key) for key in ("metadata", "spec", "status"))
    name = text(metadata, "name") or "?"
    conditions = (_condition(one) for one in objects(status, "conditions"))
    succeeded = next((one for one in conditions if one is not None and one.type == "Succeeded"), None)
    return Fit(
        name=name,
        trigger=text(spec, "trigger"),
        created=moment(metadata, "creationTimestamp"),
        started=moment(status, "startedAt"),
        finished=moment(status, "finishedAt"),
        looks_back_to=moment(spec, "since"),
        verdict=succeeded.reason if succeeded else "Pending",
        message=succeeded.message if succeeded else "",
        samples=integer(status, "samples"),
        reduction_percent=decimal(status, "predictedReductionPercent"),
        served=tuple(spans.get(name, ())),
    )


def _is_of(fit: Object, name: str, uid: str | None) -> bool:
    """Tell whether a fit is one of this deployment, not of one that had its name before."""
    if text(inside(fit, "spec", "deploymentRef"), "name") != name:
        return False
    owners = [
        owner for owner in objects(inside(fit, "metadata"), "ownerReferences") if owner.get("name") == name
    ]
    return uid is None or not owners or any(owner.get("uid") == uid for owner in owners)


def _began(fit: Fit) -> tuple[float, str]:
    time = fit.created or (fit.served[0].since if fit.served else None)
    return (0.0 if time is None else time.timestamp()), fit.name


def _problems(conditions: dict[str, Condition]) -> Iterable[Condition]:
    for kind in _SHOULD_BE_TRUE:
        condition = conditions.get(kind)
        if condition is None:
            continue
        harms = kind == "CentroidsActive" and condition.reason in _HARMS | _HARMS_TOO
        if harms or (condition.status != "True" and condition.reason not in _NO_NEWS):
            yield condition
    drift = conditions.get("DriftDetected")
    if drift is not None and (drift.status == "True" or drift.reason in _DRIFT_STUCK):
        yield drift


def _compared(name: str, held: hold.Hold, now: datetime) -> str:
    """Tell of a comparison: it sets the policy and suspends fits, and ends where somebody changes that."""
    policy = held.now["policy"]
    if held.is_alive(now):
        return f"runs: it switches policies, now {policy}, and suspends fits until it ends; leave both as they are"
    return f"was killed, and left policy {policy} and suspended fits; undo it: eldr compare {name} --restore"


def _lag(metadata: Object, status: Object) -> Iterable[str]:
    seen, generation = integer(status, "observedGeneration"), integer(metadata, "generation")
    if seen is None:
        yield _SILENT
    elif generation is not None and seen < generation:
        yield _BEHIND
