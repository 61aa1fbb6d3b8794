"""Pods of the engine vLLM, and the arguments that they refuse."""

import json
from pathlib import Path

import pytest
import yaml

from eldr import contract
from eldr_operator.validation.spec import blocked_roles, problems
from eldr_operator.workloads import desired, images
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.unit.operator.builders import make_vllm

IMAGE = "ghcr.io/eldr/eldr:test"
GOLDEN = Path(__file__).parent / "golden"
CRD = Path(__file__).parents[3] / "crds" / "eldr.dev_eldrdeployments.yaml"


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


def connectors(container):
    (text,) = [each for each in container["args"] if each.startswith("--kv-transfer-config=")]
    return json.loads(text.partition("=")[2])


def test_connectors_of_both_roles():
    cr = make_vllm({"leaseSeconds": 77})
    assert connectors(engine(cr, "prefill")) == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "connectors": [
                {"kv_connector": "EldrConnector", "kv_role": "kv_producer"},
                {
                    "kv_connector": "NixlConnector",
                    "kv_role": "kv_producer",
                    "kv_connector_extra_config": {"kv_lease_duration": 77},
                },
            ]
        },
    }
    decode = connectors(engine(cr, "decode"))
    assert decode["kv_load_failure_policy"] == "fail"
    assert [child["kv_connector"] for child in decode["kv_connector_extra_config"]["connectors"]] == [
        "EldrConnector",
        "NixlConnector",
    ]
    assert "engine_id" not in json.dumps([connectors(engine(cr, "prefill")), decode])


def test_command_line_ends_with_what_users_say():
    cr = make_vllm(
        {"args": ["--dtype=float32"]},
        model={"uri": "org/model", "name": "served"},
        decode={"args": ["--max-num-seqs=900"], "drainSeconds": 40, "gpus": 4},
        router={"maxInFlightPerDecode": 700},
    )
    container = engine(cr, "decode")
    assert container["command"] == ["vllm"]
    assert container["args"][:2] == ["serve", "org/model"]
    assert container["args"][-2:] == ["--dtype=float32", "--max-num-seqs=900"]
    assert {
        *("--served-model-name=served", "--host=$(POD_IP)", "--port=8100", "--shutdown-timeout=40"),
        *("--tensor-parallel-size=4", "--max-num-seqs=700"),
    } <= set(container["args"])
    assert pod(cr, "decode")["terminationGracePeriodSeconds"] > 40
    decode_only = ("--tensor-parallel-size", "--max-num-seqs")
    assert not [each for each in engine(cr, "prefill")["args"] if each.startswith(decode_only)]


def test_a_lower_limit_of_the_routers_restarts_no_engine():
    low, default = (engine(make_vllm(router=r), "decode")["args"] for r in ({"maxInFlightPerDecode": 7}, {}))
    assert low == default
    assert not [each for each in default if each.startswith("--max-num-seqs")]


def test_users_variables_win():
    cr = make_vllm({"env": [{"name": "VLLM_PLUGINS", "value": "eldr,mine"}]})
    found = variables(engine(cr, "prefill"))
    assert found["VLLM_PLUGINS"] == "eldr,mine"
    assert found["PYTHONPATH"] == "/eldr/plugin"
    assert len(found) == len(engine(cr, "prefill")["env"])


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_scheduling_runner_and_graphs_are_as_vllm_decides(role):
    container = engine(make_vllm(accelerator={"resourceName": "amd.com/gpu"}, **{role: {"gpus": 2}}), role)
    command, uri, *arguments = container["args"]
    assert (command, uri.startswith("--")) == ("serve", False)
    assert [each.partition("=")[0] for each in arguments] == [
        "--served-model-name",
        "--host",
        "--port",
        "--kv-transfer-config",
        "--shutdown-timeout",
        "--tensor-parallel-size",
        "--disable-access-log-for-endpoints",
    ], "none that slows an engine"
    assert set(variables(container)) == {
        *("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_PLUGINS", "PYTHONPATH", "HOME", "XDG_CACHE_HOME"),
        *("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "VLLM_ROCM_USE_AITER", "AITER_JIT_DIR"),
        *("POD_NAMESPACE", "POD_NAME", "POD_IP"),
    }


def test_an_engine_of_several_ranks_is_told_how_to_split_and_nothing_else():
    parallel = {"data": 4, "expert": "Enabled", "redundantExperts": 8, "balance": "Activations"}
    wide = engine(make_vllm(decode={"gpus": 8, "parallelism": parallel}), "decode")["args"]
    single = engine(make_vllm(), "decode")["args"]
    assert [each.partition("=")[0] for each in wide if each not in single] == [
        *("--tensor-parallel-size", "--data-parallel-size"),
        *("--enable-expert-parallel", "--enable-eplb", "--eplb-config"),
    ]


@pytest.mark.parametrize(("resource", "is_amd"), [("amd.com/gpu", True), ("nvidia.com/gpu", False)])
def test_amd_variables_only_on_amd(resource, is_amd):
    found = variables(engine(make_vllm(accelerator={"resourceName": resource}), "decode"))
    assert ("VLLM_ROCM_USE_AITER" in found) is ("AITER_JIT_DIR" in found) is is_amd


def test_the_plugin_is_there_before_anything_else_starts():
    spec = pod(make_vllm(), "prefill")
    plugin, router = spec["initContainers"]
    assert (plugin["name"], plugin["image"]) == ("eldr-plugin", IMAGE)
    assert (plugin["command"], plugin["args"]) == (["eldr"], ["engine-plugin", "/eldr/plugin"])
    assert router["name"] == contract.CONTAINER_ROUTER
    (written,) = plugin["volumeMounts"]
    (read,) = [
        mount for mount in spec["containers"][0]["volumeMounts"] if mount["mountPath"] == "/eldr/plugin"
    ]
    assert (written["name"], written["mountPath"]) == (read["name"], read["mountPath"])
    assert [each["name"] for each in pod(make_vllm(), "decode")["initContainers"]] == ["eldr-plugin"]
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in spec["volumes"]


def test_only_the_engine_may_run_as_root():
    spec = pod(make_vllm(), "prefill")
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    for container in spec["initContainers"]:
        assert container["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    (stock,) = spec["containers"]
    assert stock["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_an_hour_to_start():
    cr = make_vllm()
    probe = engine(cr, "decode")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600
    made = desired.children(cr, (), Images(IMAGE), Outside("eldr-system"))
    (prefill,) = [m for m in made if m["kind"] == "Deployment"]
    assert prefill["spec"]["progressDeadlineSeconds"] > 3600


def test_images():
    assert engine(make_vllm(), "decode")["image"] == images.VLLM
    assert engine(make_vllm({"image": "mine:1"}), "decode")["image"] == "mine:1"
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["engine"]["properties"]
    assert f"Default: {images.VLLM} for vLLM, {images.VLLM_NVIDIA} where" in fields["image"]["description"]


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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"engine": {"env": [{"name": "VLLM_DP_SIZE", "value": "2"}]}},
            "spec.engine.env[0]: 'VLLM_DP_SIZE=2': remove it: ",
        ),
        (
            {"decode": {"env": [{"name": "A"}, {"name": "VLLM_DP_SIZE", "value": "2"}]}},
            "spec.decode.env[1]: 'VLLM_DP_SIZE=2': remove it: ",
        ),
        (
            {"prefill": {"env": [{"name": "VLLM_PLUGINS", "value": "mine"}]}},
            "spec.prefill.env[0]: 'VLLM_PLUGINS=mine': write eldr,... : ",
        ),
        (
            {"prefill": {"env": [{"name": "PYTHONPATH"}]}},
            "spec.prefill.env[0]: 'PYTHONPATH=': write /eldr/plugin:... : ",
        ),
        (
            {"engine": {"env": [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "a"}]}},
            "spec.engine.env[0]: 'VLLM_NIXL_SIDE_CHANNEL_HOST=a': remove it: ",
        ),
        (
            {"prefill": {"env": [{"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": "1"}]}},
            "spec.prefill.env[0]: 'VLLM_NIXL_SIDE_CHANNEL_PORT=1': remove it: ",
        ),
        (
            {"decode": {"env": [{"name": "VLLM_USE_RUST_FRONTEND", "value": "1"}]}},
            "spec.decode.env[0]: 'VLLM_USE_RUST_FRONTEND=1': remove it: ",
        ),
        (
            {"decode": {"env": [{"name": "VLLM_USE_RUST_FRONTEND", "value": "true"}]}},
            "spec.decode.env[0]: 'VLLM_USE_RUST_FRONTEND=true': remove it: ",
        ),
        (
            {"decode": {"env": [{"name": "ELDR_BALANCE", "valueFrom": {"x": {}}}]}},
            "spec.decode.env[0]: 'ELDR_BALANCE': remove it: ",
        ),
        (
            {
                "decode": {
                    "podTemplate": {
                        "spec": {
                            "containers": [
                                {"name": "other", "env": [{"name": "VLLM_DP_SIZE", "value": "2"}]},
                                {"name": "engine", "env": [{"name": "VLLM_DP_SIZE", "value": "2"}]},
                            ]
                        }
                    }
                }
            },
            "spec.decode.podTemplate.spec.containers[1].env[0]: 'VLLM_DP_SIZE=2': remove it: ",
        ),
        (
            {"engine": {"env": [{"name": "POD_IP", "value": "::1"}]}},
            "spec.engine.env[0]: 'POD_IP': remove it: it is the pod's own status.podIP",
        ),
        (
            {
                "decode": {
                    "podTemplate": {
                        "spec": {
                            "containers": [
                                {"name": "engine", "env": [{"name": "PYTHONPATH", "$patch": "delete"}]}
                            ]
                        }
                    }
                }
            },
            "spec.decode.podTemplate.spec.containers[0].env[0]: 'PYTHONPATH=': write /eldr/plugin:... : ",
        ),
    ],
)
def test_refused_variables(spec, message):
    cr = make_vllm(**spec)
    (found,) = problems(cr)
    assert (found.reason, str(found)[: len(message)]) == ("InvalidVariable", message)
    assert blocked_roles(cr, [found]) == ({"prefill", "decode"} if "engine" in spec else {*spec})


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"env": [{"name": "VLLM_PLUGINS", "value": "eldr,mine"}]}},
        {"engine": {"env": [{"name": "PYTHONPATH", "value": "/mine:/eldr/plugin"}]}},
        {"engine": {"env": [{"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {}}}]}},
        {"engine": {"env": [{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {}}}]}},
        {"engine": {"env": [{"name": "VLLM_USE_RUST_FRONTEND", "value": "0"}]}},
        {"engine": {"env": [{"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": "5600"}]}},
        {"decode": {"podTemplate": {"spec": {"volumes": None}}}},
        {"engine": {"env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}},
        {"engine": {"type": "Simulator", "env": [{"name": "VLLM_DP_SIZE", "value": "2"}]}},
    ],
)
def test_variables_let_pass(spec):
    assert problems(make_vllm(**spec)) == []


def test_a_pod_template_may_add():
    added = {
        "name": "engine",
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"rdma/ib": "1"}},
    }
    cr = make_vllm(decode={"podTemplate": {"spec": {"containers": [added]}}})
    assert problems(cr) == []
    assert variables(engine(cr, "decode")).items() >= {"A": "1", "VLLM_PLUGINS": "eldr"}.items()


def test_other_problems_block_no_workload():
    cr = make_vllm(refit={"schedule": "x"})
    assert blocked_roles(cr, problems(cr)) == set()


def spread(cr, role="decode"):
    names = (
        "--tensor-parallel-size",
        "--data-parallel-size",
        "--enable-expert-parallel",
        "--enable-eplb",
        "--eplb-config",
    )
    return [each for each in engine(cr, role)["args"] if each.partition("=")[0] in names]


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
    (found,) = problems(make_vllm(decode={"env": [{"name": contract.ENV_BALANCE, "value": "Tokens"}]}))
    assert "spec.decode.parallelism.balance" in found.remedy
