"""What the API server itself refuses, with a message that names field and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.operator.world import FIT, KIND, simulated
from tests.support.kube import Refused
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("unattended")]


def create(kube, name="x", **spec):
    return kube.create(KIND, {"name": name}, spec=simulated(**spec))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"decode": {"replicas": 0}}, "spec.decode.replicas"),
        ({"prefill": {"rollout": {"maxSurge": 0}}}, "maxSurge and maxUnavailable are both 0"),
        ({"prefill": {"rollout": {"maxSurge": "25%"}}}, "must be Auto or a number of pods from 0 to 256"),
        ({"router": {"replicas": 2}}, "router.replicas needs router.placement Deployment"),
        ({"router": {"minCandidates": 3}}, "router.minCandidates must not exceed decode.replicas"),
        ({"router": {"tau": "2.1"}}, 'router.tau must be a decimal from 0 to 2, for example "0.1"'),
        ({"router": {"policy": "Fastest"}}, 'supported values: "ELDR", "MarginalUnion", "JSQ"'),
        (
            {"router": {"maxLoad": "0.9"}},
            'router.maxLoad must be a decimal from 1 to 1000, for example "1.25"',
        ),
        ({"router": {"policy": "Domain"}}, "router.policy Domain needs router.domains"),
        ({"router": {"domains": [{"name": "a"}, {"name": "a"}]}}, "Duplicate value"),
        ({"router": {"domains": [{"name": "a b"}]}}, "spec.router.domains[0].name"),
        ({"router": {"domains": [{"name": "a", "share": 0}]}}, "spec.router.domains[0].share"),
        (
            {"router": {"policy": "Domain", "domains": [{"name": name} for name in "abc"]}},
            "router.domains must not be more than decode.replicas",
        ),
        ({"engine": {"env": [{"name": "A"}, {"name": "A"}]}}, "Duplicate value"),
        ({"model": {"uri": ""}}, "spec.model.uri"),
        ({"engine": {"env": [{"name": "A B"}]}}, "spec.engine.env[0].name"),
        ({"router": {"env": [{"name": "1A"}]}}, "must consist of letters, digits, '_', '-' and '.'"),
        ({"engine": {"image": "vllm/vllm openai"}}, "engine.image must be the name of an image, for example"),
        ({"router": {"image": "eldr:"}}, "router.image must be the name of an image, for example"),
    ],
)
def test_refused_when_created(kube, installed, spec, message):
    with pytest.raises(Refused) as refusal:
        create(kube, **spec)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ({"gpus": 4, "parallelism": {"tensor": 2}}, "decode.parallelism.tensor times data must be decode.gpus"),
        ({"gpus": 8, "parallelism": {"expert": "Enabled", "data": 3}}, "choose data so that it divides decode.gpus"),
        ({"gpus": 8, "parallelism": {"data": 2}}, "decode.parallelism.data above 1 needs decode.parallelism.expert"),
        (
            {"gpus": 4, "parallelism": {"expert": "Enabled", "balance": "Activations"}},
            "set decode.parallelism.redundantExperts to 1 or more, or leave balance out",
        ),
        ({"gpus": 4, "parallelism": {"expert": "Enabled", "redundantExperts": 8, "balance": "Activations"}}, None),
        ({"gpus": 8, "parallelism": {"expert": "Enabled", "data": 2, "tensor": 4}}, None),
        ({"gpus": 1, "parallelism": {"expert": "Enabled"}}, "raise decode.gpus above 1"),
        ({"gpus": 0, "parallelism": {"expert": "Enabled", "tensor": 1}}, "needs several ranks"),
        ({"gpus": 4, "parallelism": {"redundantExperts": 8}}, "needs decode.parallelism.expert Enabled"),
        ({"gpus": 4, "parallelism": {}}, None),
        ({"gpus": 0, "parallelism": {"expert": "Enabled", "tensor": 2, "redundantExperts": 32}}, None),
    ],
)  # fmt: skip
def test_ranks_of_decode_engines(kube, decode, message):
    if message is None:
        assert create(kube, engine={"type": "vLLM"}, decode=decode)
        return
    with pytest.raises(Refused) as refusal:
        create(kube, engine={"type": "vLLM"}, decode=decode)
    assert message in str(refusal.value)
    assert "spec.decode" in str(refusal.value)


def test_simulated_engines_have_no_ranks(kube):
    with pytest.raises(Refused, match=r"decode\.parallelism needs engine\.type vLLM"):
        create(kube, decode={"parallelism": {}})


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


@pytest.mark.parametrize(
    "fields",
    [
        {"tlsSecret": "x-admin"},
        {"apiKeysSecret": "x-admin"},
        {"adminTLS": {"secretName": "x-admin", "authorityConfigMap": "ca"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_the_secret_with_the_token_is_none_of_the_users(kube, fields):
    with pytest.raises(Refused, match="where the operator keeps the token of admin ports; choose another"):
        create(kube, "x", router=fields)
    assert create(kube, "y", router=fields)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hf://Qwen/Qwen3-30B-A3B", "write Qwen/Qwen3-30B-A3B, a name on the Hugging Face hub without hf://"),
        ("https://huggingface.co/a/b", "write a/b, a name on the Hugging Face hub without its address"),
        (
            "pvc://models/qwen3",
            "model.uri pvc://models/qwen3: vLLM cannot load it: write a name on the Hugging",
        ),
        ("org/model@main", "a revision goes into model.revision"),
        ("org/my model", "model.uri org/my model: vLLM cannot load it"),
        ("--trust-remote-code", "model.uri --trust-remote-code: vLLM cannot load it"),
        ("s3://", "vLLM cannot load it"),
    ],
)
def test_models_that_vllm_cannot_load(kube, uri, message):
    with pytest.raises(Refused) as refusal:
        create(kube, engine={"type": "vLLM"}, model={"uri": uri})
    assert message in str(refusal.value)
    assert "spec.model.uri" in str(refusal.value)
    assert create(kube, model={"uri": uri}), "the simulator loads none"


@pytest.mark.parametrize(
    "uri",
    [
        "m",
        "Qwen/Qwen3-30B-A3B",
        "/models/my model",
        "./m",
        "models/qwen/3",
        "s3://b/m",
        "GS://b/m",
        "az://c/m",
    ],
)
def test_models_that_vllm_loads(kube, uri):
    assert create(kube, engine={"type": "vLLM"}, model={"uri": uri})


def test_a_deployment_from_before_a_rule_stays_readable_and_writable(kube):
    """Rules that come later bind what changes, not what was stored before them."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/eldrdeployments.eldr.dev"
    stored = kube.request("GET", crd)
    without = json.loads(json.dumps(stored))
    for schema in schemas(without["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        schema.pop("x-kubernetes-validations", None)
    without["metadata"].pop("resourceVersion")
    kube.request("PUT", crd, without | {"metadata": stored["metadata"]})
    try:
        old = {"image": "a b", "env": [{"name": "A B"}]}
        wait_for(lambda: created(kube, engine=old), "rules gone")
    finally:
        now = kube.request("GET", crd)
        kube.request("PUT", crd, stored | {"metadata": now["metadata"]})
    wait_for(lambda: not created(kube, "y", engine=old), "rules again")
    assert kube.get(KIND, "x")["spec"]["engine"]["image"] == "a b"
    kube.merge(KIND, "x", {"status": {"model": "x"}}, "status")
    kube.merge(
        KIND, "x", {"spec": {"decode": {"replicas": 3}, "engine": {"env": [{"name": "A B"}, {"name": "C"}]}}}
    )
    with pytest.raises(Refused, match=r"engine\.image must be the name of an image"):
        kube.merge(KIND, "x", {"spec": {"engine": {"image": "b c"}}})


def created(kube, name="x", **spec):
    try:
        made = create(kube, name, **spec)
    except Refused:
        return False
    if name != "x":
        kube.delete(KIND, name)
    return bool(made)


def schemas(schema):
    yield schema
    for field in schema.get("properties", {}).values():
        yield from schemas(field)
    if isinstance(schema.get("items"), dict):
        yield from schemas(schema["items"])


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
        ({"model": {"uri": "org/other"}}, "model.uri is immutable; create another EldrDeployment"),
        ({"model": {"name": "other"}}, "model.name is immutable"),
        ({"model": {"name": None}}, "model.name is immutable"),
        ({"decode": {"replicas": 1}}, "router.minCandidates must not exceed decode.replicas"),
    ],
)
def test_refused_when_changed(kube, change, message):
    create(kube, model={"uri": "org/tiny", "name": "tiny"}, router={"minCandidates": 2})
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


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "crds").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_source_is_what_kubectl_reads(installed, path):
    """Its anchors and merge keys mean the same to kubectl as to the chart."""
    read = json.loads(installed.kubectl("apply", "--dry-run=server", "-o", "json", "-f", str(path)))
    (schema,) = (version["schema"] for version in read["spec"]["versions"])
    live = json.loads(installed.kubectl("get", "crd", read["metadata"]["name"], "-o", "json"))
    assert read["spec"] == live["spec"]
    assert "<<" not in json.dumps(schema)
