import json

import pytest

from eldr import contract
from eldr_operator.fits import lifecycle
from tests.unit.operator.builders import NOW, make_fit

RUNNING = make_fit("f", "Running")
REPORT = {
    "version": 1,
    "verdict": "Accepted",
    "reason": "Better",
    "message": "saves 9%",
    "set": {"fit": "f", "digest": "sha256:f", "k": 2, "shards": [{"name": "f-0", "sha256": "00"}]},
    "samples": 4000,
    "layers_kept": [3, 4],
    "layers": 8,
    "experts": 64,
    "rho": 0.71249,
    "weighting": "counts_idf",
    "imbalance": 1.004,
    "cluster_sizes": [1, 1],
    "reduction": 0.0912,
    "baseline_reduction": None,
    "seconds": 1.0,
}


def job(kind=None, reason=""):
    conditions = [{"type": kind, "status": "True", "reason": reason}] if kind else []
    return {"metadata": {}, "status": {"conditions": conditions}}


def report(**fields):
    return {"data": {contract.REPORT_KEY: json.dumps(REPORT | fields)}}


def state(progress):
    (condition,) = progress.status["conditions"]
    return f"{condition['status']} {condition['reason']}"


@pytest.mark.parametrize(
    ("job_", "report_", "busy", "expected", "start"),
    [
        (None, None, None, "Unknown Running", True),
        (None, None, "other", "Unknown Queued", False),
        (job(), None, None, "Unknown Running", False),
        (job("Complete"), None, None, "False ReportMissing", False),
        (job("Failed", "DeadlineExceeded"), None, None, "False JobFailed", False),
        (job(), report(), None, "True Accepted", False),
        (job("Failed"), report(), None, "True Accepted", False),
        (job(), {}, None, "False ReportUnreadable", False),
        (None, report(), "other", "True Accepted", False),
        (job(), report(verdict="Rejected"), None, "False Rejected", False),
        (job(), report(verdict="Failed", set=None), None, "False Failed", False),
        (job(), report(set=None), None, "False Failed", False),
        (job(), report(verdict="Maybe"), None, "False ReportUnreadable", False),
        (job(), {"data": {contract.REPORT_KEY: "{"}}, None, "False ReportUnreadable", False),
    ],
)
def test_what_follows(job_, report_, busy, expected, start):
    progress = advance(job_, report_, make_fit("f", "Pending"), busy=busy)
    assert (state(progress), progress.start) == (expected, start)
    assert ("finishedAt" in progress.status) == (not expected.startswith("Unknown"))


def advance(job_, report_=None, fit=RUNNING, now=NOW, busy=None):
    return lifecycle.advance(fit, job_, report_, busy=busy, model="m", now=now)


def test_accepted_report_becomes_status():
    status = advance(job(), report()).status
    assert status["conditions"][0]["message"] == "Better: saves 9%"
    wanted = {
        "samples": 4000,
        "rho": "0.712",
        "layersKept": 2,
        "imbalance": "1.00",
        "predictedReductionPercent": "9.1",
        "weighting": "counts_idf",
        "digest": "sha256:f",
        "k": 2,
        "shards": [{"name": "f-0", "sha256": "00"}],
        "finishedAt": "2026-11-21T12:00:00Z",
    }
    assert {key: status[key] for key in wanted} == wanted


def test_unknown_figures_are_absent():
    status = advance(job(), report(rho=None, reduction=None)).status
    assert "rho" not in status
    assert "predictedReductionPercent" not in status
    zero = advance(job(), report(reduction=0.0)).status
    assert zero["predictedReductionPercent"] == "0.0"


def test_what_a_report_says_of_the_active_set_is_told_with_its_digest():
    about = {"active_harms": False, "active_digest": "sha256:a"}
    status = advance(job(), report(**about)).status
    assert (status["activeSetRegresses"], status["activeSetDigest"]) == (False, "sha256:a")


def test_a_deleted_job_is_a_failure_not_a_second_run():
    started = RUNNING.model_copy(update={"status": RUNNING.status | {"jobName": "f", "startedAt": "s"}})
    progress = advance(None, fit=started)
    assert (state(progress), progress.start) == ("False JobFailed", False)
    assert (progress.status["jobName"], progress.status["startedAt"]) == ("f", "s")


def test_a_running_fit_keeps_its_status():
    fit = make_fit("f", "Pending")
    first = advance(job(), fit=fit).status
    later = fit.model_copy(update={"status": first})
    again = advance(job(), fit=later, now=NOW.replace(hour=13)).status
    assert again == first
