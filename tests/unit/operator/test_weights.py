"""Where engines find their weights, what belongs to them, and what contradicts the fields of ``spec.model``."""

import pytest

from eldr import contract
from eldr_operator.validation.spec import blocked_roles, problems
from eldr_operator.workloads import engines
from eldr_operator.workloads.images import Images
from tests.unit.operator.builders import make_vllm

IMAGES = Images("own:1", "vllm:1")
CACHE = {"cache": {"claimName": "weights"}}
HUB = {"uri": "org/model"}


@pytest.mark.parametrize(
    ("uri", "path"),
    [("qwen3", "/eldr/model/qwen3"), ("/a/b/", "/eldr/model/a/b"), (".", "/eldr/model")],
)
def test_weights_on_a_claim_are_read_there(uri, path):
    cr = make_vllm(model={"uri": uri, "source": {"claimName": "models"}})
    pod = engines.decode(cr, IMAGES)["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:2] == ["serve", path]
    claim = {"claimName": "models", "readOnly": True}
    assert {"name": "model-source", "persistentVolumeClaim": claim} in pod["volumes"]
    mount = {"name": "model-source", "mountPath": "/eldr/model", "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]


def keys(cr):
    made = engines.prefill(cr, IMAGES), engines.decode(cr, IMAGES)
    return {each["spec"]["template"]["metadata"]["labels"][contract.LABEL_KV] for each in made}


def test_what_belongs_to_the_key_of_kv():
    def key(**model):
        (found,) = keys(make_vllm(model=HUB | model))
        return found

    assert key() == key(**CACHE) == key(tokenSecret={"name": "a"}) == key(download="Never")
    assert key(revision="v1") not in {key(), key(revision="v2")}
    assert {key(revision="v1")} == keys(make_vllm({"args": ["--revision=v1"]}, model=HUB))
    assert key(source={"claimName": "a"}) not in {key(), key(source={"claimName": "b"})}


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
