"""The operator's reading of an argument is that of vLLM's own parser: whatever changes a refused setting is refused, and what is not counted is named."""

import contextlib
import io
from collections.abc import Iterator

import pytest
from vllm.utils.argparse_utils import FlexibleArgumentParser

from eldr_operator.models import EldrDeployment
from eldr_operator.validation import arguments

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:  # until 0.32
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

VALUE = "77777"
REFUSED = {
    *("prefill_context_parallel_size", "decode_context_parallel_size", "pipeline_parallel_size"),
    *("data_parallel_size", "data_parallel_rank", "nnodes", "node_rank", "master_addr", "master_port"),
    *("port", "host", "kv_transfer_config", "served_model_name"),
    *("enable_dbo", "ubatch_size", "headless", "grpc", "uds", "root_path", "ssl_keyfile"),
}


@pytest.fixture(scope="module")
def parser():
    return make_arg_parser(FlexibleArgumentParser())


def is_refused(args):
    spec = {"model": {"uri": "a"}, "engine": {"type": "vLLM", "args": args}}
    metadata = {"name": "x", "namespace": "n", "uid": "u", "creationTimestamp": "2026-11-01T00:00:00Z"}
    cr = EldrDeployment.model_validate({"metadata": metadata, "spec": spec})
    return bool(arguments.problems(cr) or arguments.uncounted(cr, "prefill"))


def read(parser, args):
    """Return what vLLM makes of arguments, None if it takes them for wrong or for a cry for help."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return vars(parser.parse_args(args))
        except (SystemExit, ValueError, TypeError):
            return None


def spellings(options) -> Iterator[list[str]]:
    """Yield every beginning of every option, with its value behind it, after it and attached."""
    names = {option[:end] for option in options for end in range(2, len(option) + 1)} - {"--"}
    for name in sorted(names):
        yield from ([name], [name, VALUE], [f"{name}={VALUE}"], [f"{name}{VALUE}"], [f"{name}.key", VALUE])


def test_no_spelling_that_vllm_takes_reaches_a_refused_setting(parser):
    before = read(parser, [])
    assert before.keys() >= REFUSED
    options = parser._option_string_actions
    of_refused = [option for option, action in options.items() if action.dest in REFUSED]
    reached = set()
    for args in spellings([*of_refused, *(option for option in options if option[:2] != "--")]):
        after = read(parser, args)
        changed = {
            name for name in REFUSED if after and after[name] != before[name] and after[name] is not False
        }
        reached |= changed
        assert not changed or is_refused(args), (args, changed)
    assert reached >= {"prefill_context_parallel_size", "nnodes", "port", "node_rank"}


@pytest.mark.parametrize("args", [["-dc", "{}"], ["-tp", "2"], ["-O3"], ["--max-model-len=8"]])
def test_other_options_pass(parser, args):
    assert read(parser, args) is not None
    assert not is_refused(args)


@pytest.mark.parametrize(
    "args",
    [
        ["--speculative-config", '{"method": "suffix", "num_speculative_tokens": 2}'],
        ['-sc={"method": "suffix"}'],
        ["--speculative-config.method=suffix"],
        ["--speculative-config.method", "suffix"],
        ["-sc.method=suffix"],
        ["--spec-method=suffix"],
        ["--spec_method", "suffix"],
        ["--speculative_config.method=suffix"],
    ],
)
def test_a_method_of_drafting_is_read_as_vllm_reads_it(parser, args):
    after = read(parser, args)
    assert "suffix" in (after["spec_method"], (after["speculative_config"] or {}).get("method"))
    assert is_refused(args)
