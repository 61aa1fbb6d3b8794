"""The life of an EldrFit: queued, running, finished. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import border, clock
from eldr_operator.conditions import SUCCEEDED, Condition, merged
from eldr_operator.drift.counts import read_baseline
from eldr_operator.errors import InvalidResourceError
from eldr_operator.models import EldrFit, Report, parse

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """What follows from a look at an unfinished fit.

    Parameters
    ----------
    start : bool
        Whether its Job is to be created now.
    """

    status: Object
    start: bool = False


def is_running(job: Mapping[str, Any] | None) -> bool:
    """Tell whether a Job exists and has not ended."""
    return job is not None and _ended(job) is None


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
        if ended is None:
            return Progress(_running(fit, model, now, refusal))
        return Progress(_without_report(fit, *ended, now))
    if "jobName" in fit.status:
        return Progress(
            _finished(fit, "JobFailed", f"Job {fit.name} was deleted before it had reported", now)
        )
    if busy is not None:
        text = f"waits for EldrFit {busy}: one fit of a deployment runs at a time"
        return Progress(_status(fit, Condition(SUCCEEDED, "Unknown", "Queued", text), now))
    return Progress(_running(fit, model, now), start=True)


def waiting_for_deployment(fit: EldrFit, now: datetime) -> Object:
    """Return the status of a fit whose EldrDeployment does not exist."""
    name = fit.spec.deployment_ref.name
    text = f"there is no EldrDeployment {name} in this namespace; create it, or delete this EldrFit"
    return _status(fit, Condition(SUCCEEDED, "Unknown", "DeploymentNotFound", text), now)


def deleted(fit: EldrFit, now: datetime) -> Object:
    """Return the status of a fit that was deleted before it had a result, and that a finalizer holds."""
    return _finished(fit, "Deleted", f"EldrFit {fit.name} was deleted before it had a result", now)


def unreadable(body: Mapping[str, Any], problem: str, now: datetime) -> Object:
    """Return the status of a live EldrFit that cannot be read, so that it is left out of everything.

    Parameters
    ----------
    problem : str
        Names the field.
    """
    said = Condition(SUCCEEDED, "False", "InvalidField", border.text(f"{problem}; create it anew", 1000))
    generation = body["metadata"].get("generation", 1)
    before = (body.get("status") or {}).get("conditions") or ()
    return {"observedGeneration": generation, "conditions": merged(before, [said], generation, now)}


def refused(fit: EldrFit, reason: str, message: str, now: datetime) -> Object:
    """Return the status of a fit whose Job could not be created."""
    return _finished(fit, reason, message, now)


def unavailable(fit: EldrFit, message: str, now: datetime) -> Object:
    """Return the status of a fit at whose Job the API server failed: the next pass tries again."""
    return _status(fit, Condition(SUCCEEDED, "Unknown", "JobUnavailable", f"tried again: {message}"), now)


def _ended(job: Mapping[str, Any]) -> tuple[bool, str] | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
            return condition["type"] == "Complete", str(condition.get("reason", ""))
    return None


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


def _without_report(fit: EldrFit, complete: bool, reason: str, now: datetime) -> Object:  # noqa: FBT001 - a pair
    logs = f"see kubectl logs job/{fit.name}"
    if complete:
        return _finished(fit, "ReportMissing", f"the Job ended without a report; {logs}", now)
    return _finished(fit, "JobFailed", f"the Job failed ({reason}); {logs}", now)


def _reported(fit: EldrFit, report: Mapping[str, Any], now: datetime) -> Object:
    try:
        found = parse(Report, border.load(report["data"][contract.REPORT_KEY]))
    except (InvalidResourceError, ValueError, KeyError, TypeError) as error:
        name = contract.report_name(fit.name)
        text = f"ConfigMap {name} cannot be read ({border.text(str(error), 1000)}); are operator and fit of the same version?"
        return _finished(fit, "ReportUnreadable", text, now)
    accepted = found.verdict == "Accepted" and found.pointer is not None
    verdict = found.verdict if accepted or found.verdict != "Accepted" else "Failed"
    status = _finished(
        fit,
        verdict,
        border.text(f"{found.reason}: {found.message}", 3000) + _of_baseline(found),
        now,
        "True" if accepted else "False",
    )
    status |= {"samples": found.samples}
    if found.pointer is not None:
        pointer = found.pointer.model_dump(mode="json")
        status |= {key: pointer[key] for key in ("digest", "k", "shards")}
    if found.verdict != "Failed":
        figures = {
            "rho": _decimal(found.rho, 3),
            "layersKept": len(found.layers_kept),
            "imbalance": _decimal(found.imbalance, 2),
            "weighting": border.text(found.weighting, 64),
            "predictedReductionPercent": _decimal(found.reduction and found.reduction * 100, 1),
            "activeSetRegresses": found.active_harms,
            "activeSetDigest": found.active_digest,
        }
        status |= {key: value for key, value in figures.items() if value is not None}
    return status


def _of_baseline(found: Report) -> str:
    """Say what is wrong with what is stored beside a set: it is left out, so nobody would know otherwise."""
    if found.pointer is None or found.baseline is None:
        return ""
    try:
        read_baseline(found.baseline, found.pointer.k)
    except ValueError as error:
        return f"; drift is not reported while its set is active: {border.text(str(error))}"
    return ""


def _decimal(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _finished(fit: EldrFit, reason: str, message: str, now: datetime, status: str = "False") -> Object:
    made = _status(fit, Condition(SUCCEEDED, status, reason, message), now)
    kept = {key: fit.status[key] for key in ("jobName", "startedAt", "model") if key in fit.status}
    return made | kept | {"finishedAt": clock.stamp(now)}


def _status(fit: EldrFit, condition: Condition, now: datetime) -> Object:
    generation = fit.metadata.generation
    conditions = merged(fit.status.get("conditions", ()), [condition], generation, now)
    return {"observedGeneration": generation, "conditions": conditions}
