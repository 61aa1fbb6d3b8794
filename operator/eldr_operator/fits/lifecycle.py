"""The life of an EldrFit: queued, running, finished. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import clock, parsing
from eldr_operator.conditions import SUCCEEDED, Condition, condition_of, merged
from eldr_operator.drift.counts import read_baseline
from eldr_operator.errors import InvalidResourceError
from eldr_operator.models import EldrFit, Report, parse

Object = dict[str, Any]


NO_DEPLOYMENT = "DeploymentNotFound"
"""Reason of a fit that waits for its EldrDeployment."""


class Progress(NamedTuple):
    """The next status of an unfinished fit, and whether its Job is to be created now."""

    status: Object
    start: bool = False


def is_running(job: Mapping[str, Any] | None) -> bool:
    """Tell whether a Job exists and has not ended."""
    return job is not None and not _ended(job)


def may_have_reported(fit: EldrFit, job: Mapping[str, Any] | None) -> bool:
    """Tell whether there can be a report: the Job has ended, or was deleted."""
    return bool(_ended(job)) if job is not None else "jobName" in fit.status


def advance(
    fit: EldrFit,
    job: Mapping[str, Any] | None,
    report: Mapping[str, Any] | None,
    *,
    busy: str | None,
    model: str,
    now: datetime,
    refusal: str = "",
) -> Progress:
    """Take one step in the life of an unfinished fit.

    Parameters
    ----------
    report : mapping or None
        The ConfigMap that the Job wrote last.
    busy : str or None
        Name of another fit of the deployment that runs, or comes first.
    model : str
        That is deployed.
    refusal : str
        Why the Job has no pod; empty where it has one.
    """
    if report is not None:
        return Progress(_reported(fit, report, now))
    if job is not None:
        ended = _ended(job)
        status = _without_report(fit, ended, now) if ended else _running(fit, model, now, refusal)
        return Progress(status)
    if "jobName" in fit.status:
        text = f"Job {fit.name} was deleted before it had reported"
        return Progress(finished(fit, "JobFailed", text, now))
    if busy is not None:
        return Progress(queued(fit, f"waits for EldrFit {busy}: one fit of a deployment runs at a time", now))
    return Progress(_running(fit, model, now), start=True)


def queued(fit: EldrFit, message: str, now: datetime) -> Object:
    """Return the status of a fit whose Job is not made yet."""
    return _status(fit, Condition(SUCCEEDED, "Unknown", "Queued", message), now)


def waiting_for_deployment(fit: EldrFit, now: datetime) -> Object:
    """Return the status of a fit whose EldrDeployment does not exist."""
    name = fit.spec.deployment_ref.name
    text = f"there is no EldrDeployment {name} in this namespace; create it, or delete this EldrFit"
    return _status(fit, Condition(SUCCEEDED, "Unknown", NO_DEPLOYMENT, text), now)


def unreadable(body: Mapping[str, Any], problem: str, now: datetime) -> Object:
    """Return the status of a live EldrFit that is left out of everything, as a field of it cannot be read."""
    said = Condition(SUCCEEDED, "False", "InvalidField", parsing.text(f"{problem}; create it anew", 1000))
    generation = body["metadata"].get("generation", 1)
    before = (body.get("status") or {}).get("conditions") or ()
    return {"observedGeneration": generation, "conditions": merged(before, [said], generation, now)}


def unavailable(fit: EldrFit, message: str, now: datetime) -> Object:
    """Return the status of a fit at whose Job the API server failed: the next pass tries again."""
    return _status(fit, Condition(SUCCEEDED, "Unknown", "JobUnavailable", f"tried again: {message}"), now)


def _ended(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that says how a Job has ended; empty while it has not."""
    ends = (condition_of(job, "Complete"), condition_of(job, "Failed"))
    return next((condition for condition in ends if condition.get("status") == "True"), {})


def _running(fit: EldrFit, model: str, now: datetime, refusal: str = "") -> Object:
    said = Condition(SUCCEEDED, "Unknown", "Running", f"see kubectl logs job/{fit.name}")
    if refusal:
        said = Condition(SUCCEEDED, "Unknown", "PodsRefused", f"Job {fit.name} has no pod: {refusal}")
    extra = {
        "jobName": fit.name,
        "startedAt": fit.status.get("startedAt") or clock.stamp(now),
        "model": fit.status.get("model") or model,
    }
    return _status(fit, said, now) | extra


def _without_report(fit: EldrFit, ended: Mapping[str, Any], now: datetime) -> Object:
    logs = f"see kubectl logs job/{fit.name}"
    if ended["type"] == "Complete":
        return finished(fit, "ReportMissing", f"the Job ended without a report; {logs}", now)
    return finished(fit, "JobFailed", f"the Job failed ({ended.get('reason', '')}); {logs}", now)


def _reported(fit: EldrFit, report: Mapping[str, Any], now: datetime) -> Object:
    try:
        parsed = parse(Report, parsing.load(report["data"][contract.REPORT_KEY]))
    except (InvalidResourceError, ValueError, KeyError, TypeError) as error:
        name = contract.report_name(fit.name)
        text = f"ConfigMap {name} cannot be read ({parsing.text(str(error), 1000)}); are operator and fit of the same version?"
        return finished(fit, "ReportUnreadable", text, now)
    accepted = parsed.verdict == "Accepted" and parsed.pointer is not None
    verdict = parsed.verdict if accepted or parsed.verdict != "Accepted" else "Failed"
    text = parsing.text(f"{parsed.reason}: {parsed.message}", 3000) + _of_baseline(parsed)
    status = finished(fit, verdict, text, now, "True" if accepted else "False")
    status["samples"] = parsed.samples
    if parsed.pointer is not None:
        status |= parsed.pointer.model_dump(mode="json", exclude={"fit"})
    if parsed.verdict != "Failed":
        figures = {
            "rho": _decimal(parsed.rho, 3),
            "layersKept": len(parsed.layers_kept),
            "imbalance": _decimal(parsed.imbalance, 2),
            "weighting": parsing.text(parsed.weighting, 64),
            "predictedReductionPercent": _decimal(parsed.reduction and parsed.reduction * 100, 1),
            "activeSetRegresses": parsed.active_harms,
            "activeSetDigest": parsed.active_digest,
        }
        status |= {key: value for key, value in figures.items() if value is not None}
    return status


def _of_baseline(report: Report) -> str:
    """Say what is wrong with what is stored beside a set: it is left out, so nobody would know otherwise."""
    if report.pointer is None or report.baseline is None:
        return ""
    try:
        read_baseline(report.baseline, report.pointer.k)
    except ValueError as error:
        return f"; drift is not reported while its set is active: {parsing.text(str(error))}"
    return ""


def _decimal(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def finished(fit: EldrFit, reason: str, message: str, now: datetime, status: str = "False") -> Object:
    """Return the status of a fit that has ended."""
    made = _status(fit, Condition(SUCCEEDED, status, reason, message), now)
    kept = {key: fit.status[key] for key in ("jobName", "startedAt", "model") if key in fit.status}
    return made | kept | {"finishedAt": clock.stamp(now)}


def _status(fit: EldrFit, condition: Condition, now: datetime) -> Object:
    generation = fit.metadata.generation
    conditions = merged(fit.status.get("conditions", ()), [condition], generation, now)
    return {"observedGeneration": generation, "conditions": conditions}
