"""What the spec itself names is looked for, also before the operator has made any pod."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eldr.doctor import conditions, model, references
from eldr.doctor.facts import Finding
from eldr.doctor.report import examine
from eldr.doctor.templates import templates
from tests.unit.doctor.healthy import NOW, deployment, facts, pod

CHART = Path(__file__).parents[3] / "charts" / "eldr"
CLAIM = "PersistentVolumeClaim"


def wanted(**spec):
    return {(one.kind, one.name, one.key) for one in references.references(templates(deployment(**spec), ()))}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"model": {"tokenSecret": {"name": "t", "key": "token"}}}, {("Secret", "t", "token")}),
        ({"model": {"cache": {"claimName": "c"}}}, {(CLAIM, "c", "")}),
        ({"model": {"source": {"claimName": "s"}}}, {(CLAIM, "s", "")}),
        *(
            ({"router": {"placement": placement, **field}}, named)
            for placement in ("Sidecar", "Deployment")
            for field, named in (
                ({"apiKeysSecret": "k"}, {("Secret", "k", "")}),
                ({"tlsSecret": "p"}, {("Secret", "p", "tls.crt"), ("Secret", "p", "tls.key")}),
                (
                    {"adminTLS": {"secretName": "p", "authorityConfigMap": "c"}},
                    {("Secret", "p", "tls.crt"), ("Secret", "p", "tls.key"), ("ConfigMap", "c", "ca.crt")},
                ),
            )
        ),
    ],
)
def test_what_the_spec_names(spec, named):
    assert wanted(**spec) == named


def test_a_claim_that_is_missing_is_told_once():
    """Not by the pods that wait for it, and not by the condition."""
    said = 'persistentvolumeclaim "c" not found'
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    waiting = pod() | {"status": {"conditions": [unscheduled]}}
    pending = {"type": "Ready", "status": "False", "reason": "ClaimPending", "message": said}
    found = deployment(model={"cache": {"claimName": "c"}})
    found["status"]["conditions"] = [pending]
    known = facts(
        deployment=found, templates=templates(found, ()), pods=(waiting,), referred={(CLAIM, "c"): None}
    )
    told = [one for result in examine(known, NOW).results for one in result.problems]
    assert [one.about for one in told if "c" in one.problem and CLAIM.lower() in one.about.lower()] == [
        f"{CLAIM} c"
    ]
    assert not [one for one in told if one.reason]


def test_certificates_are_made_as_such():
    found = deployment(router={"tlsSecret": "p"})
    (told,) = references.look(facts(templates=templates(found, ()), referred={("Secret", "p"): None}))
    assert isinstance(told, Finding)
    assert told.remedy == "kubectl create secret tls p --cert=FILE --key=FILE"


def test_a_path_on_the_source_needs_no_volume_of_its_own():
    spec = {"model": {"uri": "/abs", "source": {"claimName": "s"}}}
    starting = deployment(**spec)
    starting["status"]["decode"]["ready"] = 0
    assert not list(model.look(facts(deployment=starting, templates=templates(starting, ()))))


def test_one_cause_of_two_conditions_is_told_once():
    refused = {"status": "False", "reason": "ChildRefused", "message": "cpu: -1"}
    found = deployment()
    found["status"]["conditions"] = [{"type": kind, **refused} for kind in ("ConfigValid", "Progressing")]
    told = [one for one in conditions.look(facts(deployment=found), NOW) if isinstance(one, Finding)]
    assert [one.reason for one in told].count("ChildRefused") == 1


def test_the_operators_pods_are_called_as_the_chart_calls_them():
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    (name, _) = re.findall(r"^app.kubernetes.io/name: (\S+)$", helpers, re.MULTILINE)
    late = deployment()
    late["metadata"]["generation"] = 3
    told = [one for one in conditions.look(facts(deployment=late), NOW) if isinstance(one, Finding)]
    assert any(f"-l app.kubernetes.io/name={name}" in one.remedy for one in told), told
