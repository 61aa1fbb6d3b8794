"""A vLLM engine in this process alone, without server and transport, that tells the CPU time of its steps. Needs vLLM.

    python hack/bench/engine_steps.py '{"role": "kv_producer", "counting": true, "model": "...", ...}'

answers each line of stdin, ``{"prompts": [[ids], ...], "tokens": n}``, by a list, the CPU seconds of every step, and stands
still meanwhile, so that two of them can take turns on a machine of few cores.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any, TextIO

# one process, so that its CPU time is all there is: scheduler, model and whatever hooks into them
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}


def make(setup: dict[str, Any]) -> Any:
    """Return an engine."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    connector = KVTransferConfig(kv_connector="EldrConnector", kv_role=setup["role"])
    arguments = EngineArgs(
        model=setup["model"],
        hf_overrides=setup["overrides"],
        load_format="dummy" if setup["overrides"] else "auto",
        dtype=setup["dtype"],
        enforce_eager=True,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=16,
        block_size=32,
        kv_cache_memory_bytes=256 << 20,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
        kv_transfer_config=connector if setup["counting"] else None,
    )
    return LLMEngine.from_engine_args(arguments)


def run(engine: Any, prompts: list[list[int]], tokens: int, names: itertools.count[int]) -> list[float]:
    """Run requests to their end; return the CPU seconds of every step."""
    from vllm import SamplingParams

    for prompt in prompts:
        sampling = SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            temperature=0,
            detokenize=False,
            extra_args={"kv_transfer_params": {"do_remote_decode": True}},
        )
        engine.add_request(f"request-{next(names)}", {"prompt_token_ids": prompt}, sampling)
    seconds = []
    while engine.has_unfinished_requests():
        begun = time.process_time()
        engine.step()
        seconds.append(time.process_time() - begun)
    return seconds


def serve(engine: Any, questions: TextIO, answers: TextIO) -> None:
    """Answer lines until there are no more."""
    names = itertools.count()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in questions:
        asked = json.loads(line)
        print(json.dumps(run(engine, asked["prompts"], asked["tokens"], names)), file=answers, flush=True)


def main() -> None:
    """Serve on stdin and stdout; whatever vLLM prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(make(json.loads(sys.argv[1])), sys.stdin, answers)


if __name__ == "__main__":
    main()
