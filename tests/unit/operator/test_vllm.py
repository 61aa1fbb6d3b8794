"""Pods of the engine vLLM, and the arguments that they refuse."""

import pytest

from eldr import contract
from eldr_operator.validation.spec import blocked_roles, problems
from eldr_operator.workloads import desired, images
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.unit.operator.builders import make_cr, make_vllm

IMAGE = "ghcr.io/eldr/eldr:test"


def pod(cr, role):
    made = {
        (m["kind"], m["metadata"]["name"]): m
        for m in desired.children(cr, (), Images(IMAGE), Outside("eldr-system"))
    }
    kind = "Deployment" if role == "prefill" else "StatefulSet"
    return made[kind, f"x-{role}"]["spec"]["template"]["spec"]


def engine(cr, role):
    (container,) = pod(cr, role)["containers"]
    return container


def variables(container):
    return {each["name"]: each.get("value") for each in container["env"]}


def test_command_line_ends_with_what_users_say():
    cr = make_vllm(
        {"args": ["--dtype=float32"]},
        decode={"args": ["--max-num-seqs=900"], "gpus": 4},
        router={"maxInFlightPerDecode": 700},
    )
    args = engine(cr, "decode")["args"]
    assert args[-2:] == ["--dtype=float32", "--max-num-seqs=900"]
    assert {"--tensor-parallel-size=4", "--max-num-seqs=700"} <= set(args)
    decode_only = ("--tensor-parallel-size", "--max-num-seqs")
    assert not [each for each in engine(cr, "prefill")["args"] if each.startswith(decode_only)]


@pytest.mark.parametrize(("resource", "is_amd"), [("amd.com/gpu", True), ("nvidia.com/gpu", False)])
def test_amd_variables_only_on_amd(resource, is_amd):
    found = variables(engine(make_vllm(accelerator={"resourceName": resource}), "decode"))
    assert ("VLLM_ROCM_USE_AITER" in found) is ("AITER_JIT_DIR" in found) is is_amd


@pytest.mark.parametrize(
    ("resource", "image"),
    [
        ("amd.com/gpu", images.VLLM),
        ("nvidia.com/gpu", images.VLLM_NVIDIA),
        ("nvidia.com/mig-1g.5gb", images.VLLM_NVIDIA),
        ("example.com/nvidia.com", images.VLLM),
    ],
)
def test_the_accelerator_decides_about_the_default_image(resource, image):
    assert Images("own").for_accelerator(resource) == Images("own", image)


def env(name, value):
    return {"env": [{"name": name, "value": value}]}


def patched(container):
    return {
        "podTemplate": {"spec": {"containers": [{"name": "other", **env("VLLM_DP_SIZE", "2")}, container]}}
    }


@pytest.mark.parametrize(
    ("role", "spec", "message"),
    [
        ("engine", env("VLLM_DP_SIZE", "2"), "env[0]: 'VLLM_DP_SIZE=2': remove it: "),
        ("prefill", env("VLLM_PLUGINS", "mine"), "env[0]: 'VLLM_PLUGINS=mine': write eldr,... : "),
        ("prefill", {"env": [{"name": "PYTHONPATH"}]}, "env[0]: 'PYTHONPATH=': write /eldr/plugin:... : "),
        (
            "engine",
            env("VLLM_NIXL_SIDE_CHANNEL_HOST", "a"),
            "env[0]: 'VLLM_NIXL_SIDE_CHANNEL_HOST=a': remove",
        ),
        ("decode", env("VLLM_USE_RUST_FRONTEND", "1"), "env[0]: 'VLLM_USE_RUST_FRONTEND=1': remove it: "),
        (
            "decode",
            {"env": [{"name": "ELDR_BALANCE", "valueFrom": {"x": {}}}]},
            "env[0]: 'ELDR_BALANCE': remove it: it is spec.decode.parallelism.balance",
        ),
        (
            "decode",
            patched({"name": "engine", **env("VLLM_DP_SIZE", "2")}),
            "podTemplate.spec.containers[1].env[0]: 'VLLM_DP_SIZE=2': remove it: ",
        ),
        ("engine", env("POD_IP", "::1"), "env[0]: 'POD_IP': remove it: it is the pod's own status.podIP"),
        (
            "decode",
            patched({"name": "engine", "env": [{"name": "PYTHONPATH", "$patch": "delete"}]}),
            "podTemplate.spec.containers[1].env[0]: 'PYTHONPATH=': write /eldr/plugin:... : ",
        ),
    ],
)
def test_refused_variables(role, spec, message):
    cr, message = make_vllm(**{role: spec}), f"spec.{role}.{message}"
    (found,) = problems(cr)
    assert (found.reason, str(found)[: len(message)]) == ("InvalidVariable", message)
    assert blocked_roles(cr, [found]) == ({"prefill", "decode"} if role == "engine" else {role})


@pytest.mark.parametrize(
    "spec",
    [
        env("VLLM_PLUGINS", "eldr,mine"),
        env("PYTHONPATH", "/mine:/eldr/plugin"),
        env("VLLM_USE_RUST_FRONTEND", "0"),
        env("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"),
        {"env": [{"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {}}}]},
        {"env": [{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {}}}]},
        {"env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
        {"podTemplate": {"spec": {"volumes": None}}},
        patched({"name": "engine", **env("A", "1"), "resources": {"limits": {"rdma/ib": "1"}}}),
    ],
)
def test_variables_let_pass(spec):
    assert problems(make_vllm(decode=spec)) == []


def test_variables_of_simulated_engines_are_let_pass():
    assert problems(make_cr(engine={"type": "Simulator", **env("VLLM_DP_SIZE", "2")})) == []


def test_other_problems_block_no_workload():
    cr = make_vllm(refit={"schedule": "x"})
    assert blocked_roles(cr, problems(cr)) == set()


def spread(cr, role="decode"):
    """Return what an engine of several ranks is told beside others."""
    single = engine(make_vllm(decode={"gpus": 0}), role)["args"]
    return [each for each in engine(cr, role)["args"] if each not in single]


@pytest.mark.parametrize(
    ("decode", "wanted"),
    [
        ({"gpus": 1}, []),
        ({"gpus": 4}, ["--tensor-parallel-size=4"]),
        ({"gpus": 4, "parallelism": {"expert": "Enabled"}}, ["--tensor-parallel-size=4", "--enable-expert-parallel"]),
        (
            {"gpus": 8, "parallelism": {"data": 8, "expert": "Enabled"}},
            ["--data-parallel-size=8", "--enable-expert-parallel"],
        ),
        (
            {"gpus": 8, "parallelism": {"data": 2, "expert": "Enabled"}},
            ["--tensor-parallel-size=4", "--data-parallel-size=2", "--enable-expert-parallel"],
        ),
        (
            {"gpus": 0, "parallelism": {"tensor": 2, "expert": "Enabled", "redundantExperts": 32}},
            [
                "--tensor-parallel-size=2",
                "--enable-expert-parallel",
                "--enable-eplb",
                '--eplb-config={"num_redundant_experts":32,"communicator":"torch_gloo"}',
            ],
        ),
    ],
)  # fmt: skip
def test_ranks_of_decode_engines(decode, wanted):
    cr = make_vllm(decode=decode)
    assert spread(cr) == wanted
    assert spread(cr, "prefill") == []


def test_who_chooses_among_copies_is_told_to_decode_engines():
    asked = {"tensor": 2, "expert": "Enabled", "redundantExperts": 32}
    cr = make_vllm(decode={"parallelism": asked | {"balance": "Activations"}})
    assert variables(engine(cr, "decode"))[contract.ENV_BALANCE] == "Activations"
    assert contract.ENV_BALANCE not in variables(engine(cr, "prefill"))
    assert contract.ENV_BALANCE not in variables(engine(make_vllm(decode={"parallelism": asked}), "decode"))
