"""Every field of the custom resources has an effect: on what the operator makes of it, or as a test of its own shows."""

from pathlib import Path

import pytest
import yaml

from eldr import contract
from eldr_operator.errors import InvalidResourceError
from eldr_operator.fits.job import fit_job
from eldr_operator.locality import routing
from eldr_operator.models import EldrFit, parse
from eldr_operator.workloads import desired, downloads, rollout
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.unit.operator.builders import NOW, make_cr, make_fit, merged, nested

ROOT = Path(__file__).parents[3]
BASE = {
    "model": {"uri": "org/model"},
    "engine": {"type": "vLLM"},
    "decode": {"gpus": 4, "replicas": 4, "parallelism": {"data": 2, "expert": "Enabled"}},
    "router": {"policy": "Domain", "domains": [{"name": "a"}]},
    "refit": {"drift": {"maintenanceWindow": {"schedule": "0 3 * * *"}}},
}
SPECIAL = {
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
BESIDE = {
    "router.replicas": {"router": {"placement": "Deployment"}},
    "router.podTemplate": {"router": {"placement": "Deployment"}},
    **{
        f"router.adminTLS.{field}": {"router": {"adminTLS": {"secretName": "a", "authorityConfigMap": "a"}}}
        for field in ("secretName", "authorityConfigMap")
    },
    "router.prior": {"router": {"policy": "MarginalUnion"}},
    "model.tokenSecret.key": {"model": {"tokenSecret": {"name": "a"}}},
    "model.download": {"model": {"cache": {"claimName": "a"}}},
    "decode.parallelism.balance": {"decode": {"parallelism": {"expert": "Enabled", "redundantExperts": 2}}},
}
"""What else must be set for a field to matter."""
ELSEWHERE = {
    "prefill.rollout.revision",
    "prefill.rollout.onFailure",
    "decode.rollout.revision",
    "decode.rollout.onFailure",
    "decode.rollout.progressDeadlineSeconds",
    "update",
    "centroids.pin",
    "centroids.ackTimeoutSeconds",
    "refit.schedule",
    "refit.timeZone",
    "refit.suspend",
    "refit.historyLimit",
    "refit.drift.mode",
    "refit.drift.windowRequests",
    "refit.drift.windowSeconds",
    "refit.drift.consecutiveWindows",
    "refit.drift.coolDownMinutes",
    "refit.drift.maxPerDay",
    "refit.drift.maintenanceWindow.schedule",
    "refit.drift.maintenanceWindow.durationMinutes",
    "refit.drift.maintenanceWindow.timeZone",
}
"""Their effect depends on what runs: tests of rollouts, updates, activation, fits and drift show it."""


def leaves(node, path=()):
    for name, found in node.get("properties", {}).items():
        if found.get("properties"):
            yield from leaves(found, (*path, name))
        else:
            yield ".".join((*path, name)), found


def fields(kind):
    crd = yaml.safe_load((ROOT / "crds" / f"eldr.dev_{kind}.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return dict(leaves(schema["properties"]["spec"]))


def other(field, found):
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


def base(field):
    return merged(BASE, BESIDE.get(field, {}))


def made(spec):
    """Return all that the operator makes of a spec, as far as that does not depend on what runs."""
    cr = make_cr(**spec)
    running = {"metadata": {}, "spec": {}, "status": {"replicas": 1}}
    return repr(
        [
            desired.children(cr, [], Images("own:1"), Outside("eldr-system")),
            rollout.of_deployment(cr.spec.prefill.rollout, running, [], NOW),
            routing.document(cr, routing.Table()),
            fit_job(cr, make_fit("f", "Pending", trigger="Schedule"), "own:1"),
            downloads.job(cr, Images("own:1")),
        ]
    )


FIELDS = fields(contract.DEPLOYMENTS)


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in ELSEWHERE])
def test_a_field_changes_what_is_made(field):
    asked = merged(base(field), nested(field, other(field, FIELDS[field])))
    assert made(asked) != made(base(field))


FIT_FIELDS = fields(contract.FITS)
REFERENCE = "deploymentRef.name"
"""``operator/locality/test_centroids.py::test_a_fit_waits_for_its_deployment`` shows what it does."""


@pytest.mark.parametrize("field", [field for field in FIT_FIELDS if field != REFERENCE])
def test_a_field_of_a_fit_changes_its_job(field):
    found = FIT_FIELDS[field]
    value = "2026-11-02T00:00:00Z" if found.get("format") == "date-time" else other(field, found)
    plain = make_fit("f", "Pending")
    asked = parse(EldrFit, merged(plain.model_dump(mode="json", by_alias=True), {"spec": {field: value}}))
    assert fit_job(make_cr(**BASE), asked, "own:1") != fit_job(make_cr(**BASE), plain, "own:1")


@pytest.mark.parametrize("field", [field for field, found in FIELDS.items() if found.get("enum")])
def test_a_value_that_only_another_release_knows_is_not_taken_for_one_of_this(field):
    with pytest.raises(InvalidResourceError, match=r"Canary"):
        make_cr(**merged(base(field), nested(field, "Canary")))
