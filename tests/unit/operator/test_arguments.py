"""Arguments for vLLM that are refused, in every spelling, and those that are not."""

from pathlib import Path

import pytest

from eldr_operator.validation.arguments import uncounted
from eldr_operator.validation.spec import blocked_roles, problems
from tests.unit.operator.builders import make_vllm

OPTIONS = Path(__file__).parent / "golden" / "vllm-0.32-options.txt"
"""All options of vLLM 0.32, listed by ``make_arg_parser(FlexibleArgumentParser())._option_string_actions``."""
GLOO = '{"communicator":"torch_gloo"}'


def spec(text, limit=None):
    """Return what ``ROLE ARGUMENTS; ROLE ARGUMENTS`` stands for, where routers send an engine so many requests."""
    roles = {role: {"args": args} for role, *args in map(str.split, text.split(";"))}
    return roles | ({"router": {"maxInFlightPerDecode": limit}} if limit else {})


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("engine -x --kv_transfer_config={}", 1),
        ("decode --seed=1 --tokens-only", 1),
        *(
            (text, 0)
            for text in (
                "engine --kv-transfer-config {}",
                "decode --kv-transfer-config.kv_role kv_both",
                "prefill --port=1",
                "prefill --host ::",
                "decode --served-model-name=a",
                "decode --served a",
                "decode --model=a",
                "decode --uds=/a",
                "decode --ud=/a",
                "prefill --kv-offloading-size 8",
                "prefill --kv_offloading_size=8",
                "engine --disable-log-stats",
                "prefill --scheduler-cls=mine",
                "decode --config=/etc/vllm.yaml",
                "decode -dp 2",
                "decode --data_parallel_size=2",
                "decode --data-parallel-rank=0",
                "decode -dph",
                "decode --root-path=/v1",
                "decode --ssl-keyfile /k",
                "decode --enable-ssl-refresh",
                "decode --grpc",
                "decode -n 2",
                "decode -n2",
                "decode -n=2",
                "decode --nnodes=2",
                "decode -r1",
                "decode --node_rank 1",
                "decode --master-addr=a",
                "decode --master-port 1",
                "decode --max-num-queued-tokens=9",
                "decode --pipeline-parallel-size=2",
                "engine -pp 2",
            )
        ),
    ],
)
def test_refused_arguments(text, at):
    cr, role = make_vllm(**spec(text)), text.split()[0]
    (found,) = problems(cr)
    assert (found.reason, found.field) == ("InvalidArgument", f"spec.{role}.args[{at}]")
    assert "remove it" in found.remedy
    assert blocked_roles(cr, [found]) == ({"prefill", "decode"} if role == "engine" else {role})


@pytest.mark.parametrize(
    "text", ["decode -dcp 2 -dcp=1", "prefill --enable-dbo --no-enable-dbo", "engine -dcp=2; decode -dcp=1"]
)
def test_of_arguments_that_come_twice_the_last_one_counts(text):
    cr = make_vllm(**spec(text))
    assert uncounted(cr, "decode") == []
    assert bool(uncounted(cr, "prefill")) == ("engine" in text)


@pytest.mark.parametrize(
    "text",
    [
        "prefill --pipeline-parallel-size=2",
        "prefill -pp 2",
        "decode -dcp 2",
        "prefill --prefill-context-parallel-size=2",
        "decode -pc 2",
        "decode --enable-dbo",
        "decode --ubatch-size=2",
        "prefill --ub 2",
        "engine --ubatch_size=3",
        "engine --spec-method=medusa",
        "engine -sc.method suffix",
        'engine -sc {"method":"dflash"}',
    ],
)
def test_arguments_with_which_engines_do_not_count_pass_and_are_named(text):
    cr, role = make_vllm(**spec(text)), text.split()[0]
    assert problems(cr) == []
    (found,) = uncounted(cr, "decode" if role == "decode" else "prefill")
    assert found.startswith(f"spec.{role}.args[0] ({text.split()[1]}")


@pytest.mark.parametrize(
    "spec",
    [
        *map(
            spec,
            (
                "engine -pp 1",
                "engine -pp=1 --pipeline-parallel-size=1",
                "engine --model-impl=vllm -dc {}",
                "decode -dcp=1 -pcp 1 -dp 1 --data-parallel-size-local=1",
                "decode --ubatch-size=0 --no-enable-dbo -- -",
                "decode --no-async-scheduling; prefill --async-scheduling",
                "decode -n1 -n 1 --nnodes=1 -r0 --node-rank=0 --api-server-count=4",
                "engine --block-size=128 --kv-offloading-backend=native --api-key k",
                "engine --block-size=512",
                "decode -dc={} -dc.n=2 -tp 2 -q=fp8 -O3 --seed -1",
                "decode --chat-template port",
                # batches that hold what routers send
                "prefill --max-num-seqs=8",
                "prefill --max-num-queued-reqs=8 --max-num-queued-tokens=9",
                "decode --max-num-queued-reqs=256",
                "decode --max-num-seqs=8 --max-num-batched-tokens=64",
                "engine --max-num-active-seqs=8; decode --max-num-active-seqs=512",
                # copies of experts on prefill engines
                f"prefill --enable-eplb --eplb-config {GLOO}",
                f"prefill --eplb_config={GLOO} --enable-eplb",
                "prefill --enable-eplb --eplb-c.communicator=torch_gloo --eplb-c.window_size=9",
                "prefill --enable-eplb --eplb-config.communicator torch_gloo --eplb-config {}",
                "prefill --eplb-config {}",
                "prefill --eplb-config.window_size=9",
                "prefill --enable-expert-parallel --no-enable-eplb",
            ),
        ),
        spec("decode --max-num-active-seqs=32", limit=32),
        {"engine": {"type": "Simulator", "args": ["--port=1"]}},
        # blanks within one argument
        *(
            {"engine": {"args": [arg]}}
            for arg in (
                "",
                "=",
                "--chat-template={% if x %} y",
                '{"a": "b c"}',
                "a b",
                '--speculative-config={"method": "ngram"}',
                '-dc={"a": 1}',
            )
        ),
    ],
    ids=str,
)
def test_let_pass(spec):
    assert problems(make_vllm(**spec)) == []


@pytest.mark.parametrize(
    ("text", "limit", "field"),
    [
        ("decode --max-num-active-seqs=255", None, "decode.args[0]"),
        ("decode --max-num-seqs=512 --max-num-active-seqs=8", None, "decode.args[1]"),
        ("engine --max_num_act=8", None, "engine.args[0]"),
        ("engine --max-num-active-seqs=512; decode --max-num-a=8", None, "decode.args[0]"),
        ("decode --max-num-active-seqs=32", 33, "decode.args[0]"),
        ("decode --max-num-queued-reqs=255", None, "decode.args[0]"),
    ],
)
def test_batches_smaller_than_what_routers_send(text, limit, field):
    (found,) = problems(make_vllm(**spec(text, limit)))
    assert (found.reason, found.field) == ("InvalidArgument", f"spec.{field}")
    assert "maxInFlightPerDecode" in found.remedy


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


def test_a_value_of_its_own_is_shown():
    (found,) = problems(make_vllm(**spec("decode --x -dp 4 --y")))
    assert str(found).startswith("spec.decode.args[1]: '-dp 4': remove it: ")


@pytest.mark.slow
def test_every_spelling_that_vllm_reads_as_a_refused_option():
    options = set(OPTIONS.read_text().split())

    def is_refused(name):
        return bool(problems(make_vllm({"args": [name, "77777"]})))

    refused = {option for option in options if is_refused(option)}
    assert not [option for option in refused if option.startswith("--no-")]
    assert {each for each in options if each.startswith(("--ssl-", "--data-parallel-", "-dp"))} <= refused
    for option in refused:
        dashes = len(option) - len(option.lstrip("-"))
        for end in range(dashes + 1, len(option)):
            if (short := option[:end]) not in options:
                assert is_refused(short), f"{short} may be {option}"
                assert is_refused(f"{short}.key")
                if dashes == len("--"):
                    assert is_refused(short.replace("-", "_").replace("__", "--", 1))
    assert {"--model-impl", "--api-key", "--max-num-seqs", "-dc", "-tp"} <= options - refused


@pytest.mark.parametrize("role", ["engine", "decode"])
@pytest.mark.parametrize(
    "args", ["--enable-eplb", "--eplb-config {}", "--eplb-config.window_size=9", "--eplb_c=1"]
)
def test_copies_of_experts_have_a_field_on_decode_engines(role, args):
    (found,) = problems(make_vllm(**spec(f"{role} {args}")))
    assert found.field == f"spec.{role}.args[0]"
    assert "spec.decode.parallelism.redundantExperts" in found.remedy


@pytest.mark.parametrize(
    ("args", "at"),
    [
        ("--enable-eplb", 0),
        ('--eplb-config {"num_redundant_experts":8} --enable-eplb', 2),
        ('--enable-eplb --eplb-config {"communicator":null}', 0),
        ("--enable-eplb --eplb-config={", 0),
        (f"--enable-eplb --eplb-config {GLOO} --eplb-config {{}}", 0),
        # vLLM makes one value of the keys and appends it
        (f"--enable-eplb --eplb-config {GLOO} --eplb-config.window_size=9", 0),
    ],
)
def test_prefill_engines_whose_copies_would_go_by_nixl(args, at):
    cr = make_vllm(**spec(f"prefill {args}"))
    (found,) = problems(cr)
    assert (found.reason, found.field) == ("InvalidArgument", f"spec.prefill.args[{at}]")
    assert "communicator" in found.remedy
    assert "torch_gloo" in found.remedy
    assert blocked_roles(cr, [found]) == {"prefill"}
