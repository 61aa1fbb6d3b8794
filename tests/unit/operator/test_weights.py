"""Where engines find their weights, what belongs to them, and what contradicts the fields of ``spec.model``."""

import pytest

from eldr import contract
from eldr_operator.validation.spec import blocked_roles, problems
from eldr_operator.workloads import engines, revisions
from eldr_operator.workloads.images import Images
from tests.unit.operator.builders import make_vllm

IMAGES = Images("own:1", "vllm:1")
CACHE = {"cache": {"claimName": "weights"}}
HUB = {"uri": "org/model"}


def manifests(cr):
    return {"prefill": engines.prefill(cr, IMAGES), "decode": engines.decode(cr, IMAGES)}


def pod(cr, role):
    return manifests(cr)[role]["spec"]["template"]["spec"]


def engine(cr, role):
    return pod(cr, role)["containers"][0]


def variables(cr, role):
    return {each["name"]: each.get("value") or each["valueFrom"] for each in engine(cr, role)["env"]}


def claims(cr, role):
    return {
        each["name"]: each["persistentVolumeClaim"]
        for each in pod(cr, role)["volumes"]
        if "persistentVolumeClaim" in each
    }


def keys(cr):
    return {
        each["spec"]["template"]["metadata"]["labels"][contract.LABEL_KV] for each in manifests(cr).values()
    }


@pytest.mark.parametrize(
    ("role", "compiled"), [("prefill", "/eldr/cache"), ("decode", "/eldr/models/compiled/$(POD_NAME)")]
)
def test_all_share_weights_and_no_two_engines_a_folder_of_compiled_graphs(role, compiled):
    cr = make_vllm(model=HUB | CACHE)
    assert claims(cr, role) == {"model-cache": {"claimName": "weights"}}
    assert {"name": "model-cache", "mountPath": "/eldr/models"} in engine(cr, role)["volumeMounts"]
    found = variables(cr, role)
    assert found["HF_HOME"] == "/eldr/models/huggingface"
    assert found["VLLM_CACHE_ROOT"] == f"{compiled}/vllm"
    assert found["TRITON_CACHE_DIR"] == f"{compiled}/triton"
    assert found["AITER_JIT_DIR"] == "/eldr/cache/aiter"
    assert found["HOME"] == "/eldr/cache"
    assert list(found).index("POD_NAME") < list(found).index("VLLM_CACHE_ROOT"), "else nothing is expanded"


def test_the_token_and_the_revision_reach_engines_of_both_roles():
    model = HUB | {"revision": "v1", "tokenSecret": {"name": "hub"}}
    cr = make_vllm({"args": ["--dtype=float32"]}, model=model)
    for role in ("prefill", "decode"):
        assert variables(cr, role)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
        args = engine(cr, role)["args"]
        assert args.index("--revision=v1") < args.index("--dtype=float32")


@pytest.mark.parametrize(
    ("uri", "path"),
    [("qwen3", "/eldr/model/qwen3"), ("/a/b/", "/eldr/model/a/b"), (".", "/eldr/model")],
)
def test_weights_on_a_claim_are_read_there(uri, path):
    cr = make_vllm(model={"uri": uri, "source": {"claimName": "models"}})
    assert engine(cr, "decode")["args"][:2] == ["serve", path]
    assert claims(cr, "decode") == {"model-source": {"claimName": "models", "readOnly": True}}
    mount = {"name": "model-source", "mountPath": "/eldr/model", "readOnly": True}
    assert mount in engine(cr, "decode")["volumeMounts"]


def test_what_belongs_to_the_key_of_kv():
    def key(**model):
        (found,) = keys(make_vllm(model=HUB | model))
        return found

    assert key() == key(**CACHE) == key(tokenSecret={"name": "a"}) == key(download="Never")
    assert key(revision="v1") not in {key(), key(revision="v2")}
    assert {key(revision="v1")} == keys(make_vllm({"args": ["--revision=v1"]}, model=HUB))
    assert key(source={"claimName": "a"}) not in {key(), key(source={"claimName": "b"})}


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        ({"download": "Never"}, set()),
        ({"revision": "v1"}, {"prefill", "decode"}),
        (CACHE, {"prefill", "decode"}),
        ({"tokenSecret": {"name": "a"}}, {"prefill", "decode"}),
    ],
)
def test_what_makes_another_revision_of_pods(model, changed):
    placed = {"placement": "Deployment"}
    before, after = make_vllm(model=HUB, router=placed), make_vllm(model=HUB | model, router=placed)
    roles = ("prefill", "decode", "router")
    assert {r for r in roles if revisions.inputs(before, r) != revisions.inputs(after, r)} == changed


@pytest.mark.parametrize(
    ("model", "spec", "field", "remedy"),
    [
        ({"revision": "a"}, {"args": ["--revision=b"]}, "args[0]", "write it as spec.model.revision"),
        (CACHE, {"args": ["--revision", "b"]}, "args[0]", "write it as spec.model.revision"),
        (CACHE, {"args": ["--download-dir=/x"]}, "args[0]", "remove it: the claim of spec.model.cache is"),
        (CACHE, {"env": [{"name": "HF_HOME", "value": "/x"}]}, "env[0]", "the claim of spec.model.cache is"),
        (
            {"tokenSecret": {"name": "a"}},
            {"env": [{"name": "HF_TOKEN", "value": "x"}]},
            "env[0]",
            "remove it: the token is the one of spec.model.tokenSecret",
        ),
    ],
)
def test_what_contradicts_the_model(model, spec, field, remedy):
    cr = make_vllm(model=HUB | model, decode=spec)
    (problem,) = problems(cr)
    assert problem.field == f"spec.decode.{field}"
    assert remedy in str(problem)
    assert blocked_roles(cr, [problem]) == {"decode"}
    assert problems(make_vllm(model=HUB, decode=spec)) == []
    (of_both,) = problems(make_vllm(spec, model=HUB | model))
    assert of_both.field == f"spec.engine.{field}"


def test_a_pod_template_contradicts_the_model_too():
    container = {"name": "engine", "env": [{"name": "HF_HUB_CACHE", "value": "/x"}]}
    patch = {"podTemplate": {"spec": {"containers": [container]}}}
    (problem,) = problems(make_vllm(model=HUB | CACHE, prefill=patch))
    assert problem.field == "spec.prefill.podTemplate.spec.containers[0].env[0]"


def test_other_arguments_are_none_of_the_models():
    args = ["--tokenizer-revision=a", "--code-revision=b", "--reasoning-parser=qwen3", "--dtype=float16"]
    assert problems(make_vllm({"args": args}, model=HUB | CACHE | {"revision": "a"})) == []
