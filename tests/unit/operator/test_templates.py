"""Patches of ``podTemplate`` that are refused: what they would take from the operator's containers, and bad names."""

from pathlib import Path

import pytest
import yaml

from eldr_operator.fits.job import fit_job
from eldr_operator.validation import names
from eldr_operator.validation.spec import blocked_roles, problems
from tests.support.deep import nested
from tests.unit.operator.builders import make_cr, make_fit, make_vllm

CRD = Path(__file__).parents[3] / "crds" / "eldr.dev_eldrdeployments.yaml"
DELETE, REPLACE = {"$patch": "delete"}, {"$patch": "replace"}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"env": None}, "env: None: remove it, or write a list"),
        (
            {"env": [REPLACE, {"name": "A"}]},
            "env: [{'$patch': 'replace'}, {'name': 'A'}]: remove it, or write",
        ),
        (
            {"args": ["serve", "m"]},
            "args: ['serve', 'm']: remove it: it would replace all arguments of the operator; write yours into spec.decode.args",
        ),
        ({"command": ["nice", "vllm"]}, "command: ['nice', 'vllm']: remove it"),
        (DELETE, "$patch: 'delete': remove it: it would remove the container"),
        (REPLACE, "$patch: 'replace': remove it: it would remove the container"),
        ({"image": "a b"}, "image: 'a b': write the name of an image"),
        ({"env": [{"name": "A B"}]}, "env[0].name: 'A B': write letters, digits"),
    ],
)
def test_a_pod_template_keeps_what_the_operator_made(patch, message):
    containers = [{"name": "other", "args": ["a"], "command": None}, {"name": "engine"} | patch]
    template = {"spec": {"containers": containers}}
    cr = make_vllm(decode={"podTemplate": template})
    (found,) = problems(cr)
    assert found.reason in {"InvalidPodTemplate", "InvalidVariable"}
    assert str(found).startswith(f"spec.decode.podTemplate.spec.containers[1].{message}")
    assert blocked_roles(cr, [found]) == {"decode"}
    cr = make_vllm(prefill={"podTemplate": template})
    (found,) = problems(cr)
    assert blocked_roles(cr, [found]) == {"prefill"}


@pytest.mark.parametrize("engine", ["vLLM", "Simulator"])
@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (
            {"args": ["router"]},
            "[0].args: ['router']: remove it: it would replace all arguments of the operator",
        ),
        ({"env": [{"name": "ELDR_ADMIN_TOKEN", "value": "x"}]}, "[0].env[0]: 'ELDR_ADMIN_TOKEN': remove it"),
        ({"env": [{"name": "POD_IP", "value": "1"}]}, "[0].env[0]: 'POD_IP': remove it"),
        ({"restartPolicy": None}, "[0].restartPolicy: None: remove it"),
    ],
)
def test_the_router_beside_an_engine_keeps_what_the_operator_made(engine, patch, message):
    template = {"spec": {"initContainers": [{"name": "router"} | patch]}}
    cr = make_cr(engine={"type": engine}, prefill={"podTemplate": template})
    (found,) = problems(cr)
    assert str(found).startswith(f"spec.prefill.podTemplate.spec.initContainers{message}")
    assert blocked_roles(cr, [found]) == {"prefill"}


def test_the_container_that_brings_the_plugin_keeps_what_the_operator_made():
    template = {"spec": {"initContainers": [{"name": "eldr-plugin", "args": []}]}}
    (found,) = problems(make_vllm(decode={"podTemplate": template}))
    assert found.field == "spec.decode.podTemplate.spec.initContainers[0].args"
    assert problems(make_cr(decode={"podTemplate": template})) == [], "the simulator has no such container"


@pytest.mark.parametrize("patch", [None, [REPLACE], [REPLACE, {"name": "mine", "image": "i"}]])
def test_lists_that_hold_containers_of_the_operator_stay(patch):
    template = {"podTemplate": {"spec": {"initContainers": patch}}}
    (found,) = problems(make_vllm(prefill=template))
    assert "it would remove eldr-plugin, router, which the operator made" in found.remedy
    (found,) = problems(make_vllm(decode=template))
    assert "it would remove eldr-plugin, which" in found.remedy
    (found,) = problems(make_cr(prefill=template))
    assert "it would remove router, which" in found.remedy
    assert problems(make_cr(decode=template)) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"volumes": [{"name": "cache", "$patch": "remove"}]}, "volumes[0].$patch"),
        ({"tolerations": [{"key": "a", "$patch": "delete"}]}, "tolerations[0].$patch"),
        ({"$setElementOrder/containers": []}, "$setElementOrder/containers"),
        (
            {"containers": [{"name": "e", "livenessProbe": {"$patch": None}}]},
            "containers[0].livenessProbe.$patch",
        ),
        ({"volumes": [{"$patch": "delete"}]}, "volumes[0]"),
        (
            {"affinity": {"podAffinity": {"x": [{"a": {"$retainKeys": []}}]}}},
            "affinity.podAffinity.x[0].a.$retainKeys",
        ),
        ({"nodeSelector": {"env": "prod", "volumes": "fast"}}, None),
        ({"securityContext": DELETE}, None),
    ],
)
def test_markers(spec, field):
    found = [problem.field for problem in problems(make_cr(prefill={"podTemplate": {"spec": spec}}))]
    assert found == ([f"spec.prefill.podTemplate.spec.{field}"] if field else [])


def rules(schema):
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule["rule"]
    for field in schema.get("properties", {}).values():
        yield from rules(field)
    if isinstance(schema.get("items"), dict):
        yield from rules(schema["items"])


DEEP = {"a": nested(100)}


@pytest.mark.parametrize(
    ("spec", "field", "roles"),
    [
        ({"prefill": {"pod_template": {"spec": DEEP}}}, "spec.prefill.podTemplate", {"prefill"}),
        ({"decode": {"env": ({"name": "A", "valueFrom": DEEP},)}}, "spec.decode.env", {"decode"}),
        ({"router": {"pod_template": {"spec": [DEEP]}}}, "spec.router.podTemplate", {"prefill"}),
    ],
    ids=["prefill", "decode", "router"],
)
def test_what_is_nested_very_deep_is_refused(spec, field, roles):
    cr = make_cr(**spec)
    (problem,) = [problem for problem in problems(cr) if "nested deeper" in problem.remedy]
    assert (problem.field, blocked_roles(cr, [problem])) == (field, roles)


def test_what_is_nested_as_pods_are_is_not():
    found = problems(make_cr(decode={"pod_template": {"spec": nested(98)}}))
    assert not [problem for problem in found if "nested deeper" in problem.remedy]


def test_pod_templates_take_the_names_that_the_schema_takes_elsewhere():
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    found = list(rules(version["schema"]["openAPIV3Schema"]))
    assert found.count(f"self.matches(r'{names.IMAGE_PATTERN}')") == len(["engine.image", "router.image"])
    assert found.count(f"self.matches('{names.VARIABLE_PATTERN}')") == len(
        ["engine", "prefill", "decode", "router"]
    )


@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        *(
            (name, True)
            for name in ("vllm", "vllm/vllm-openai-rocm:v0.32.0", "localhost:5000/a/b", "a__b/c--d:1")
        ),
        *(
            (f"registry.example.com/x{tail}", True)
            for tail in ("", ":Tag", f"@sha256:{'0f' * 32}", f":t@sha256:{'0' * 64}")
        ),
        ("[::1]:5000/x", True),
        *(
            (name, False)
            for name in ("a b", " a", "a\n", "x:", "a/B", "x@sha256:12", "", "https://a/b", "-a", "a//b")
        ),
    ],
)
def test_names_of_images(name, is_good):
    assert names.is_image(name) is is_good


@pytest.mark.parametrize(
    ("field", "container", "blocked"), [("router", "router", {"router"}), ("refit", "fit", set())]
)
@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"args": ["x"]}, "args: ['x']: remove it"),
        ({"env": [{"name": "POD_IP", "value": "::1"}]}, "env[0]: 'POD_IP': remove it"),
    ],
)
def test_patches_of_routers_and_fits_keep_what_the_operator_made(field, container, blocked, patch, message):
    template = {"spec": {"containers": [{"name": container} | patch], "nodeSelector": {"a": "b"}}}
    own = {"placement": "Deployment"} if field == "router" else {}
    cr = make_cr(**{field: own | {"podTemplate": template}})
    (found,) = problems(cr)
    assert str(found).startswith(f"spec.{field}.podTemplate.spec.containers[0].{message}")
    assert blocked_roles(cr, [found]) == blocked
    job = fit_job(cr, make_fit("f"), "own")["spec"]["template"]["spec"]
    assert job["containers"][0]["args"][:2] == ["fit", "job"]
    assert "nodeSelector" not in job
