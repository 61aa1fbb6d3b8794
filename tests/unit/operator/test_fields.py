"""Every field of the custom resources has an effect: on what the operator makes of it, or as a test of its own shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eldr import contract
from eldr_operator.errors import InvalidResourceError
from eldr_operator.fits.job import fit_job
from eldr_operator.locality import routing
from eldr_operator.models import EldrDeployment, EldrFit, parse
from eldr_operator.workloads import desired, downloads, rollout
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.unit.operator.builders import NOW

ROOT = Path(__file__).parents[3]
BASE: dict[str, Any] = {
    "model": {"uri": "org/model"},
    "engine": {"type": "vLLM"},
    "decode": {"gpus": 4, "replicas": 4, "parallelism": {"data": 2, "expert": "Enabled"}},
    "router": {"policy": "Domain", "domains": [{"name": "a"}]},
    "refit": {"drift": {"maintenanceWindow": {"schedule": "0 3 * * *"}}},
}
SPECIAL: dict[str, Any] = {
    "model.revision": "abc",
    "engine.type": "Simulator",
    "prefill.rollout.maxSurge": 2,
    "router.placement": "Deployment",
    "router.domains": [{"name": "b"}],
    "decode.parallelism.tensor": 4,
    "decode.parallelism.data": 4,
    "decode.parallelism.expert": "Disabled",
    "router.replicas": 5,
    "service.annotations": {"example.com/a": "1"},
}
"""Values where any other one of the field's type would not do."""
BESIDE: dict[str, dict[str, Any]] = {
    "router.replicas": {"router": {"placement": "Deployment"}},
    "router.podTemplate": {"router": {"placement": "Deployment"}},
    "router.adminTLS.secretName": {"router": {"adminTLS": {"secretName": "a", "authorityConfigMap": "a"}}},
    "router.adminTLS.authorityConfigMap": {
        "router": {"adminTLS": {"secretName": "a", "authorityConfigMap": "a"}}
    },
    "router.prior": {"router": {"policy": "MarginalUnion"}},
    "model.tokenSecret.key": {"model": {"tokenSecret": {"name": "a"}}},
    "model.download": {"model": {"cache": {"claimName": "a"}}},
    "decode.parallelism.balance": {"decode": {"parallelism": {"expert": "Enabled", "redundantExperts": 2}}},
}
"""What else must be set for a field to matter."""
_REFIT, _DECIDE = "unit/operator/test_refit.py::", "unit/operator/test_drift_decide.py::"
_ROLLBACK = "unit/operator/test_rollback.py::"
ELSEWHERE = {
    **{
        f"{role}.rollout.{field}": f"{_ROLLBACK}{test}"
        for role in ("prefill", "decode")
        for field, test in {
            "revision": "test_a_revision_that_the_spec_names",
            "onFailure": "test_wait_tries_a_revision_that_has_failed_again",
        }.items()
    },
    "decode.rollout.progressDeadlineSeconds": f"{_ROLLBACK}test_what_is_no_failure",
    "update": "operator/test_revisions.py::test_a_window_that_is_not_open_waits",
    "centroids.pin": "unit/operator/test_activation.py::test_pin_rolls_back_and_its_removal_goes_forward",
    "centroids.ackTimeoutSeconds": "operator/locality/test_centroids.py::test_after_the_timeout_it_goes_on_and_names_who_lacks_it",
    "refit.schedule": f"{_REFIT}test_due_minutes",
    "refit.timeZone": f"{_REFIT}test_due_minutes",
    "refit.suspend": "unit/operator/test_activation.py::test_suspended_bootstrap_says_what_to_do",
    "refit.historyLimit": f"{_REFIT}test_history",
    "refit.drift.mode": f"{_DECIDE}test_observing_says_what_it_sees_and_orders_nothing",
    "refit.drift.windowRequests": "unit/operator/test_drift_windows.py::test_a_window_takes_its_time_and_a_full_one_begins_anew",
    "refit.drift.windowSeconds": "unit/operator/test_drift_windows.py::test_a_window_takes_its_time_and_a_full_one_begins_anew",
    "refit.drift.consecutiveWindows": "unit/operator/test_drift_changes.py::test_drift_needs_consecutive_windows",
    "refit.drift.coolDownMinutes": f"{_DECIDE}test_after_a_fit_there_is_a_pause_that_doubles_while_fits_bring_no_quiet",
    "refit.drift.maxPerDay": f"{_DECIDE}test_the_daily_budget_is_of_the_last_day",
    "refit.drift.maintenanceWindow.schedule": f"{_DECIDE}test_fits_start_in_the_maintenance_window_only",
    "refit.drift.maintenanceWindow.durationMinutes": f"{_DECIDE}test_fits_start_in_the_maintenance_window_only",
    "refit.drift.maintenanceWindow.timeZone": f"{_DECIDE}test_fits_start_in_the_maintenance_window_only",
}
"""Where a field's effect depends on what runs: the tests that show it."""


def schema(kind: str) -> dict[str, Any]:
    crd = yaml.safe_load((ROOT / "crds" / f"eldr.dev_{kind}.yaml").read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def leaves(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, found in node.get("properties", {}).items():
        if found.get("properties"):
            yield from leaves(found, (*path, name))
        else:
            yield ".".join((*path, name)), found


def other(field: str, found: dict[str, Any]) -> Any:
    """Return a value that is neither the field's default nor what stands in :data:`BASE`."""
    if field in SPECIAL:
        return SPECIAL[field]
    if found.get("enum"):
        return next(value for value in reversed(found["enum"]) if value != found.get("default"))
    kind = found.get("type")
    if kind == "integer":
        return found.get("default", found.get("minimum", 0)) + 1
    if kind == "array":
        named = "properties" in found.get("items", {})
        return [{"name": "A", "value": "1"}] if named else ["--some-option"]
    if kind == "object":
        return {"metadata": {"labels": {"a": "b"}}} if field.endswith("podTemplate") else {"cpu": "3"}
    return {"tau": "0.7", "maxLoad": "7.5", "prior": "0.7"}.get(field.rpartition(".")[2], "other")


def merged(into: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    made = dict(into)
    for key, value in more.items():
        made[key] = (
            merged(made[key], value) if isinstance(value, dict) and isinstance(made.get(key), dict) else value
        )
    return made


def nested(field: str, value: Any) -> dict[str, Any]:
    for name in reversed(field.split(".")):
        value = {name: value}
    return value


def made(spec: dict[str, Any], now: Any) -> str:
    """Return all that the operator makes of a spec, as far as that does not depend on what runs."""
    metadata = {"name": "x", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-11-01T00:00:00Z"}
    cr = parse(EldrDeployment, {"metadata": metadata, "spec": spec})
    fit = parse(
        EldrFit,
        {
            "metadata": metadata | {"name": "f"},
            "spec": {"deploymentRef": {"name": "x"}, "trigger": "Schedule"},
        },
    )
    running = {"metadata": {}, "spec": {}, "status": {"replicas": 1}}
    return repr(
        [
            desired.children(cr, [], Images("own:1"), Outside("eldr-system")),
            rollout.of_deployment(cr.spec.prefill.rollout, running, [], now),
            routing.document(cr, routing.Table()),
            fit_job(cr, fit, "own:1"),
            downloads.job(cr, Images("own:1")),
        ]
    )


FIELDS = dict(leaves(schema(contract.DEPLOYMENTS)))


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in ELSEWHERE])
def test_a_field_changes_what_is_made(field):
    base = merged(BASE, BESIDE.get(field, {}))
    assert made(merged(base, nested(field, other(field, FIELDS[field]))), NOW) != made(base, NOW)


FIT_FIELDS = dict(leaves(schema(contract.FITS)))
REFERENCE = "deploymentRef.name"
"""``operator/locality/test_centroids.py::test_a_fit_waits_for_its_deployment`` shows what it does."""


@pytest.mark.parametrize("field", [field for field in FIT_FIELDS if field != REFERENCE])
def test_a_field_of_a_fit_changes_its_job(field):

    def job(spec: dict[str, Any]) -> Any:
        metadata = {"namespace": "ns", "uid": "u", "creationTimestamp": "2026-11-01T00:00:00Z"}
        cr = parse(EldrDeployment, {"metadata": metadata | {"name": "x"}, "spec": BASE})
        fit = {"metadata": metadata | {"name": "f"}, "spec": {"deploymentRef": {"name": "x"}, **spec}}
        return fit_job(cr, parse(EldrFit, fit), "own:1")

    found = FIT_FIELDS[field]
    value = "2026-11-02T00:00:00Z" if found.get("format") == "date-time" else other(field, found)
    assert job({field: value}) != job({})


@pytest.mark.parametrize("field", ELSEWHERE)
def test_a_field_has_a_test_elsewhere(field):
    where, _, name = ELSEWHERE[field].partition("::")
    text = (ROOT / "tests" / where).read_text()
    assert field in FIELDS
    assert f"def {name}(" in text


@pytest.mark.parametrize("field", [field for field, found in FIELDS.items() if found.get("enum")])
def test_a_value_that_only_another_release_knows_is_not_taken_for_one_of_this(field):
    with pytest.raises(InvalidResourceError, match=r"Canary"):
        made(merged(merged(BASE, BESIDE.get(field, {})), nested(field, "Canary")), None)
