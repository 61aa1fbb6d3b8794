"""What the API server itself refuses, with a message that names field and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.operator.world import FIT, KIND, simulated
from tests.support.kube import Refused

pytestmark = pytest.mark.kube

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def create(kube, name="x", **spec):
    return kube.create(KIND, {"name": name}, spec=simulated(**spec))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"decode": {"replicas": 0}}, "spec.decode.replicas"),
        ({"decode": {"replicas": 65}}, "spec.decode.replicas"),
        ({"prefill": {"replicas": 0}}, "spec.prefill.replicas"),
        ({"router": {"replicas": 2}}, "router.replicas needs router.placement Deployment"),
        ({"router": {"minCandidates": 3}}, "router.minCandidates must not exceed decode.replicas"),
        ({"router": {"tau": "2.1"}}, 'router.tau must be a decimal from 0 to 2, for example "0.1"'),
        ({"router": {"tau": "-1"}}, "spec.router.tau"),
        ({"router": {"tau": "1e3"}}, "spec.router.tau"),
        ({"router": {"tau": 0.1}}, "spec.router.tau"),
        ({"router": {"policy": "Fastest"}}, 'supported values: "ELDR", "MarginalUnion", "JSQ"'),
        (
            {"router": {"maxLoad": "0.9"}},
            'router.maxLoad must be a decimal from 1 to 1000, for example "1.25"',
        ),
        ({"router": {"maxLoad": "10000000"}}, "router.maxLoad must be a decimal from 1 to 1000"),
        ({"router": {"maxLoad": 1.25}}, "spec.router.maxLoad"),
        ({"router": {"policy": "Domain"}}, "router.policy Domain needs router.domains"),
        ({"router": {"domains": []}}, "spec.router.domains"),
        ({"router": {"domains": [{"name": "a"}, {"name": "a"}]}}, "Duplicate value"),
        ({"router": {"domains": [{"name": "a b"}]}}, "spec.router.domains[0].name"),
        ({"router": {"domains": [{"name": "a", "share": 0}]}}, "spec.router.domains[0].share"),
        (
            {"router": {"policy": "Domain", "domains": [{"name": name} for name in "abc"]}},
            "router.domains must not be more than decode.replicas",
        ),
        ({"router": {"placement": "Daemon"}}, "spec.router.placement"),
        ({"engine": {"type": "TensorRT"}}, "spec.engine.type"),
        ({"engine": {"modelRunner": "V3"}}, "spec.engine.modelRunner"),
        ({"signatures": {"samplePercent": 101}}, "spec.signatures.samplePercent"),
        ({"engine": {"leaseSeconds": 1}}, "spec.engine.leaseSeconds"),
        ({"refit": {"suspend": "yes"}}, "spec.refit.suspend"),
        ({"engine": {"env": [{"name": "A"}, {"name": "A"}]}}, "Duplicate value"),
        ({"model": {"uri": ""}}, "spec.model.uri"),
    ],
)
def test_refused_when_created(kube, installed, spec, message):
    with pytest.raises(Refused) as refusal:
        create(kube, **spec)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a" * 41, "at most 40 characters"),
        ("1x", "must start with a lower-case letter"),
        ("a.b", "because a Service"),
    ],
)
def test_names_that_children_could_not_carry(kube, name, message):
    with pytest.raises(Refused) as refusal:
        create(kube, name)
    assert message in str(refusal.value)
    assert create(kube, "a" * 40)


def test_unknown_fields_are_refused_by_strict_clients(kube):
    with pytest.raises(Refused, match=r'unknown field "spec\.decod"'):
        kube.request(
            "POST",
            f"/apis/eldr.dev/v1alpha1/namespaces/{kube.namespace}/eldrdeployments",
            {
                "apiVersion": "eldr.dev/v1alpha1",
                "kind": KIND,
                "metadata": {"name": "x"},
                "spec": simulated() | {"decod": {"replicas": 3}},
            },
            fieldValidation="Strict",
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"uri": "sim://other"}}, "model.uri is immutable; create another EldrDeployment"),
        ({"model": {"name": "other"}}, "model.name is immutable"),
        ({"model": {"name": None}}, "model.name is immutable"),
        ({"decode": {"replicas": 1}}, "router.minCandidates must not exceed decode.replicas"),
    ],
)
def test_refused_when_changed(kube, change, message):
    create(kube, model={"uri": "sim://tiny", "name": "tiny"}, router={"minCandidates": 2})
    with pytest.raises(Refused) as refusal:
        kube.merge(KIND, "x", {"spec": change})
    assert message in str(refusal.value)


def test_domains_bind_only_the_policy_that_looks_at_them(kube):
    """Left over from another day, they must not keep anybody from scaling down."""
    create(kube, router={"domains": [{"name": name} for name in "ab"]})
    kube.merge(KIND, "x", {"spec": {"decode": {"replicas": 1}}})
    with pytest.raises(Refused, match="must not be more than"):
        kube.merge(KIND, "x", {"spec": {"router": {"policy": "Domain"}}})


def test_a_name_cannot_be_given_later(kube):
    create(kube)
    with pytest.raises(Refused, match=r"model\.name is immutable"):
        kube.merge(KIND, "x", {"spec": {"model": {"name": "late"}}})


def test_fits_are_immutable_and_checked(kube):
    made = kube.create(FIT, {"generateName": "x-manual-"}, spec={"deploymentRef": {"name": "x"}})
    assert made["metadata"]["name"].startswith("x-manual-")
    assert made["spec"]["trigger"] == "Manual"
    with pytest.raises(Refused, match="spec is immutable; create another EldrFit"):
        kube.merge(FIT, made["metadata"]["name"], {"spec": {"k": 3}})
    for spec, message in (
        ({"trigger": "Whim"}, r"spec\.trigger"),
        ({"k": 0}, r"spec\.k"),
        ({"lookbackMinutes": 0}, r"spec\.lookbackMinutes"),
    ):
        with pytest.raises(Refused, match=message):
            kube.create(FIT, {"name": "y"}, spec={"deploymentRef": {"name": "x"}} | spec)
    with pytest.raises(Refused, match="at most 63 characters"):
        kube.create(FIT, {"name": "y" * 64}, spec={"deploymentRef": {"name": "x"}})
    with pytest.raises(Refused, match="must consist of lower-case letters"):
        kube.create(FIT, {"name": "a.b"}, spec={"deploymentRef": {"name": "x"}})


def test_fits_are_selectable_by_deployment(kube):
    for name in ("a", "b"):
        kube.create(FIT, {"name": name}, spec={"deploymentRef": {"name": f"of-{name}"}})
    url = f"/apis/eldr.dev/v1alpha1/namespaces/{kube.namespace}/eldrfits"
    found = kube.request("GET", url, fieldSelector="spec.deploymentRef.name=of-a")["items"]
    assert [fit["metadata"]["name"] for fit in found] == ["a"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_taken_strictly(kube, example):
    manifest = yaml.safe_load(example.read_text())
    command = ["-n", kube.namespace, "--validate=strict", "-f", str(example)]
    if "kind" in manifest:
        kube.cluster.kubectl("create", *command)
    else:
        create(kube, "qwen3")
        patch = ["patch", "eldr", "qwen3", "--type", "merge", "--patch-file", str(example)]
        kube.cluster.kubectl("-n", kube.namespace, *patch)


def test_every_field_is_explained(installed):
    for kind in ("eldr", "ef"):
        text = installed.kubectl("explain", kind, "--recursive=false")
        assert "<empty>" not in text
