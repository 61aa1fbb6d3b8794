"""Counts and tokens of engines without server and transport equal the reference's, on whatever device vLLM finds.

It is the one test of real engines that a GPU can run without NIXL: ``ELDR_VLLM=ENVIRONMENT pytest tests/vllm/test_in_process.py``. ``ELDR_VLLM_MODE``
asks for a mode that vLLM does not pick by itself.
"""

import numpy as np
import pytest

from eldr.wire import decode_counts
from eldr_bench.engine_child import Child, Kind, Setting, Shape
from eldr_bench.gpu_check import device
from tests.vllm.comparison import Seen, resolve
from tests.vllm.engines import CPU_MODE, GPU_MODE, Mode, asked_mode

GENERATED = 24
LENGTHS = (1, 31, 32, 33, 64, 150, 300, 700)
ARGUMENTS = {
    "max_model_len": 1024,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 64 << 20,
    "enable_prefix_caching": True,
}


@pytest.fixture(scope="module")
def kind(environment):
    python = environment / "bin" / "python"
    make = _on_gpu if device(python) else _on_cpu
    return Kind(python, Shape("trained", "float32", ()), make(asked_mode()))


def _on_gpu(asked: Mode | None) -> Setting:
    # products of float32 are rounded to TF32 by Triton's default
    env = {"TRITON_F32_DEFAULT": "ieee"}
    # the cache's size is given, so that this is only what must be free
    arguments = ARGUMENTS | {"gpu_memory_utilization": 0.1}
    if asked is not None:
        env["VLLM_USE_V2_MODEL_RUNNER"] = str(int(asked.runner == "V2"))
        arguments |= {"async_scheduling": asked.scheduler == "asynchronous"}
    return Setting(", ".join(asked or GPU_MODE), arguments, env)


def _on_cpu(asked: Mode | None) -> Setting:
    mode = asked or CPU_MODE
    arguments = ARGUMENTS | {"enforce_eager": True, "block_size": 32}
    return Setting(", ".join(mode), arguments, mode.env, "eldr_cpu")


@pytest.fixture
def ask(kind, plugin, tmp_path):
    """Ask an engine of a role for some tokens after each of these prompts, twice over, so that the second time finds blocks in its cache."""

    def asked(role, prompts, tokens):
        log = tmp_path / "engine.log"
        with log.open("wb") as file:
            child = Child(kind, role, plugin, file)
        try:
            assert child.begin() == kind.setting.mode
            answers = [child.ask(prompts, tokens) for _ in range(2)]
            # a record comes with the step after its request
            return [*answers, child.ask(prompts[:1], tokens)]
        except RuntimeError as error:
            pytest.fail(f"{error}: {log.read_text(errors='replace')[-6000:]}")
        finally:
            child.close()

    return asked


def prompts():
    drawn = np.random.default_rng(11)
    return [drawn.integers(300, 4000, length).tolist() for length in LENGTHS]


def by(reference, prompt, generated):
    positions = range(len(prompt) - 1, len(prompt) + len(generated) - 1)
    return lambda swaps: reference.ask(prompt, generated, positions, swaps)


@pytest.mark.long
def test_signatures(ask, reference):
    asked = prompts()
    for answer in ask("kv_producer", asked, 1)[:2]:
        for prompt, name in zip(asked, answer["generated"], strict=True):
            signature = decode_counts(answer["signatures"][name])
            assert (signature.tokens, signature.exact) == (len(prompt), True)
            counted = signature.counts.astype(int)
            seen = Seen(len(prompt), answer["generated"][name], counted, np.zeros_like(counted))
            resolve(seen, by(reference, prompt, seen.generated), name)


def test_activations(ask, reference):
    asked = prompts()
    answers = ask("kv_consumer", asked, GENERATED)
    # vLLM adds a suffix of its own to the names that it is given
    records = {
        record["request_id"].rpartition("-")[0]: decode_counts(record)
        for answer in answers
        for record in answer["records"]
    }
    for answer in answers[:2]:
        for prompt, (name, ids) in zip(asked, answer["generated"].items(), strict=True):
            record = records[name]
            assert (record.tokens, record.exact) == (GENERATED - 1, True)
            seen = Seen(len(prompt), ids, None, record.counts.astype(int))
            resolve(seen, by(reference, prompt, ids), name)
