"""Arguments for vLLM that are refused, in every spelling, and those that are not."""

from pathlib import Path

import pytest

from eldr_operator.validation.spec import blocked_roles, problems
from tests.unit.operator.builders import make_vllm

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("spec", "field", "roles"),
    [
        ({"engine": {"args": ["--kv-transfer-config", "{}"]}}, "spec.engine.args[0]", {"prefill", "decode"}),
        (
            {"engine": {"args": ["-x", "--kv_transfer_config={}"]}},
            "spec.engine.args[1]",
            {"prefill", "decode"},
        ),
        (
            {"decode": {"args": ["--kv-transfer-config.kv_role", "kv_both"]}},
            "spec.decode.args[0]",
            {"decode"},
        ),
        ({"prefill": {"args": ["--port=1"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"prefill": {"args": ["--host", "::"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"decode": {"args": ["--served-model-name=a"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--served", "a"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--model=a"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--uds=/a"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--pipeline-parallel-size=2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"prefill": {"args": ["-pp", "2"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"decode": {"args": ["--ud=/a"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["-dcp", "2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"prefill": {"args": ["--prefill-context-parallel-size=2"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"decode": {"args": ["--enable-dbo"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--ubatch-size=2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"prefill": {"args": ["--kv-offloading-size", "8"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"prefill": {"args": ["--kv_offloading_size=8"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"engine": {"args": ["--disable-log-stats"]}}, "spec.engine.args[0]", {"prefill", "decode"}),
        ({"decode": {"args": ["--seed=1", "--tokens-only"]}}, "spec.decode.args[1]", {"decode"}),
        ({"prefill": {"args": ["--scheduler-cls=mine"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"decode": {"args": ["--config=/etc/vllm.yaml"]}}, "spec.decode.args[0]", {"decode"}),
        ({"prefill": {"args": ["--ub", "2"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"prefill": {"args": ["--ubatch_size=3"]}}, "spec.prefill.args[0]", {"prefill"}),
        ({"decode": {"args": ["-dp", "2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--data_parallel_size=2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--data-parallel-rank=0"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["-dph"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--root-path=/v1"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--ssl-keyfile", "/k"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--enable-ssl-refresh"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--grpc"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["-pc", "2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["-n", "2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["-n2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["-n=2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--nnodes=2"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["-r1"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--node_rank", "1"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--master-addr=a"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--master-port", "1"]}}, "spec.decode.args[0]", {"decode"}),
        ({"decode": {"args": ["--max-num-queued-tokens=9"]}}, "spec.decode.args[0]", {"decode"}),
    ],
)
def test_refused_arguments(spec, field, roles):
    cr = make_vllm(**spec)
    (found,) = problems(cr)
    assert (found.reason, found.field) == ("InvalidArgument", field)
    assert "remove it" in found.remedy
    assert blocked_roles(cr, [found]) == roles


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"args": ["-pp", "1"]}},
        {"engine": {"args": ["-pp=1", "--pipeline-parallel-size=1"]}},
        {"engine": {"args": ["--model-impl=vllm", "-dc", "{}"]}},
        {"decode": {"args": ["-dcp=1", "-pcp", "1", "-dp", "1", "--data-parallel-size-local=1"]}},
        {"decode": {"args": ["--ubatch-size=0", "--no-enable-dbo", "--", "-"]}},
        {"decode": {"args": ["--no-async-scheduling"]}, "prefill": {"args": ["--async-scheduling"]}},
        {
            "decode": {
                "args": ["-n1", "-n", "1", "--nnodes=1", "-r0", "--node-rank=0", "--api-server-count=4"]
            }
        },
        {"engine": {"args": ["--block-size=128", "--kv-offloading-backend=native", "--api-key", "k"]}},
        {"engine": {"args": ["--block-size=512"]}},
        {"decode": {"args": ["-dc={}", "-dc.n=2", "-tp", "2", "-q=fp8", "-O3", "--seed", "-1"]}},
        {"decode": {"args": ["--chat-template", "port"]}},
        {"engine": {"type": "Simulator", "args": ["--port=1"]}},
    ],
)
def test_let_pass(spec):
    assert problems(make_vllm(**spec)) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"decode": {"args": ["--max-num-seqs=255"]}}, "spec.decode.args[0]"),
        ({"decode": {"args": ["--max-num-seqs", "+0_8"]}}, "spec.decode.args[0]"),
        ({"decode": {"args": ["--max-num-seqs=512", "--max-num-active-seqs=8"]}}, "spec.decode.args[1]"),
        ({"engine": {"args": ["--max_num_act=8"]}}, "spec.engine.args[0]"),
        ({"engine": {"args": ["--seed=1", "--max_num_seqs", "8"]}}, "spec.engine.args[1]"),
        (
            {"engine": {"args": ["--max-num-seqs=512"]}, "decode": {"args": ["--max-num-s=8"]}},
            "spec.decode.args[0]",
        ),
        (
            {"decode": {"args": ["--max-num-seqs=32"]}, "router": {"maxInFlightPerDecode": 33}},
            "spec.decode.args[0]",
        ),
        ({"decode": {"args": ["--max-num-queued-reqs=255"]}}, "spec.decode.args[0]"),
        ({"engine": {"args": ["--max_num_queued_r", "8"]}}, "spec.engine.args[0]"),
    ],
)
def test_batches_smaller_than_what_routers_send(spec, field):
    (found,) = problems(make_vllm(**spec))
    assert (found.reason, found.field) == ("InvalidArgument", field)
    assert "maxInFlightPerDecode" in found.remedy


@pytest.mark.parametrize(
    "spec",
    [
        {"prefill": {"args": ["--max-num-seqs=8"]}},
        {"prefill": {"args": ["--max-num-queued-reqs=8", "--max-num-queued-tokens=9"]}},
        {"decode": {"args": ["--max-num-queued-reqs=256"]}},
        {"decode": {"args": ["--max-num-seqs=256", "--max-num-batched-tokens=64"]}},
        {"engine": {"args": ["--max-num-seqs=8"]}, "decode": {"args": ["--max-num-seqs=512"]}},
        {"decode": {"args": ["--max-num-seqs=32"]}, "router": {"maxInFlightPerDecode": 32}},
    ],
)
def test_batches_that_hold_what_routers_send(spec):
    assert problems(make_vllm(**spec)) == []


@pytest.mark.parametrize("role", ["engine", "prefill", "decode", "router"])
@pytest.mark.parametrize(
    ("arg", "instead"),
    [
        ("--max-model-len 8192", "--max-model-len=8192, or two items"),
        ("-q  fp8 ", "-q=fp8, or two items"),
        ("--enable-lora --max-loras=2", "--enable-lora=--max-loras=2, or two items"),
        ('--hf-overrides {"a": 1}', '--hf-overrides={"a": 1}, or two items'),
        ("--seed =3", "--seed=3, or two items"),
        ("--enable-lora ", "write --enable-lora:"),
    ],
)
def test_an_option_and_its_value_in_one_item(role, arg, instead):
    """As people copy them from a shell: vLLM reads one option of that name, which it does not have."""
    (found,) = problems(make_vllm(**{role: {"args": ["--seed=1", arg]}}))
    assert (found.reason, found.field, found.value) == ("InvalidArgument", f"spec.{role}.args[1]", arg)
    assert instead in found.remedy


@pytest.mark.parametrize(
    "arg",
    ["", "=", "--chat-template={% if x %} y", '{"a": "b c"}', "a b", '--speculative-config={"method": "ngram"}', '-dc={"a": 1}'],
)  # fmt: skip
def test_items_with_blanks_that_are_one_argument(arg):
    assert problems(make_vllm(engine={"args": [arg]})) == []


def test_a_value_of_its_own_is_shown():
    (found,) = problems(make_vllm(decode={"args": ["--x", "-dp", "4", "--y"]}))
    assert str(found).startswith("spec.decode.args[1]: '-dp 4': remove it: ")


@pytest.mark.slow
def test_every_spelling_that_vllm_reads_as_a_refused_option():
    """Against all options of vLLM 0.32, listed by ``make_arg_parser(FlexibleArgumentParser())._option_string_actions``."""
    options = set((GOLDEN / "vllm-0.32-options.txt").read_text().split())

    def is_refused(name):
        return bool(problems(make_vllm({"args": [name, "77777"]})))

    refused = {option for option in options if is_refused(option)}
    assert not [option for option in refused if option.startswith("--no-")]
    assert {
        option for option in options if option.startswith(("--ssl-", "--data-parallel-", "-dp"))
    } <= refused
    for option in refused:
        dashes = len(option) - len(option.lstrip("-"))
        for end in range(dashes + 1, len(option)):
            if (short := option[:end]) not in options:
                assert is_refused(short), f"{short} may be {option}"
                assert is_refused(f"{short}.key")
                if dashes == len("--"):
                    assert is_refused(short.replace("-", "_").replace("__", "--", 1))
    let_pass = options - refused
    assert {
        "--model-impl",
        "--api-key",
        "--max-num-seqs",
        "-dc",
        "-tp",
        "--kv-offloading-backend",
    } <= let_pass


@pytest.mark.parametrize(
    "args", [["--enable-eplb"], ["--eplb-config", "{}"], ["--eplb-config.window_size=9"], ["--eplb_c=1"]]
)
def test_copies_of_experts_have_a_field_on_decode_engines(args):
    for role in ("engine", "decode"):
        (found,) = problems(make_vllm(**{role: {"args": args}}))
        assert found.field == f"spec.{role}.args[0]"
        assert "spec.decode.parallelism.redundantExperts" in found.remedy


GLOO = '{"communicator": "torch_gloo"}'


@pytest.mark.parametrize(
    ("args", "at"),
    [
        (["--enable-eplb"], 0),
        (["--seed=1", "--enable_eplb"], 1),
        (["--enable-epl"], 0),
        (["--eplb-config", '{"num_redundant_experts": 8}', "--enable-eplb"], 2),
        (["--enable-eplb", "--eplb-config", '{"communicator": null}'], 0),
        (["--enable-eplb", "--eplb-config={"], 0),
        (["--enable-eplb", "--eplb-config=[1]"], 0),
        (["--enable-eplb", "--eplb-config.communicator", "null"], 0),
        (["--enable-eplb", "--eplb-config", GLOO, "--eplb-config", "{}"], 0),
        # vLLM makes one value of the keys and appends it
        (["--enable-eplb", "--eplb-config", GLOO, "--eplb-config.window_size=9"], 0),
    ],
)
def test_prefill_engines_whose_copies_would_go_by_nixl(args, at):
    cr = make_vllm(prefill={"args": args})
    (found,) = problems(cr)
    assert (found.reason, found.field) == ("InvalidArgument", f"spec.prefill.args[{at}]")
    assert "communicator" in found.remedy
    assert "torch_gloo" in found.remedy
    assert blocked_roles(cr, [found]) == {"prefill"}


@pytest.mark.parametrize(
    "args",
    [
        ["--enable-eplb", "--eplb-config", GLOO],
        [f"--eplb_config={GLOO}", "--enable-eplb"],
        ["--enable-eplb", "--eplb-c.communicator=torch_gloo", "--eplb-c.window_size=9"],
        ["--enable-eplb", "--eplb-config.communicator", "torch_gloo", "--eplb-config", "{}"],
        ["--eplb-config", "{}"],
        ["--eplb-config.window_size=9"],
        ["--enable-expert-parallel", "--no-enable-eplb"],
    ],
)
def test_prefill_engines_that_may_have_copies(args):
    assert problems(make_vllm(prefill={"args": args})) == []
