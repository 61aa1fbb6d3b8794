"""A vLLM engine in this process alone, without server and transport, that tells the CPU time of its steps. Needs vLLM.

    python hack/bench/eldr_bench/engine_steps.py '{"role": "kv_producer", "counting": true, "model": "...", ...}'

answers each line of stdin, ``{"prompts": [[ids], ...], "tokens": n}``, by the CPU seconds of every step, what was generated and what
was counted, and stands still meanwhile, so that two of them can take turns on a machine of few cores.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
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


def run(engine: Any, prompts: list[list[int]], tokens: int, names: itertools.count[int]) -> dict[str, Any]:
    """Run requests to their end; return the CPU seconds of every step, each request's tokens, and those that the plug-in counted."""
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
    seconds, generated, signatures = [], {}, []
    while engine.has_unfinished_requests():
        begun = time.process_time()
        outputs = engine.step()
        seconds.append(time.process_time() - begun)
        for output in outputs:
            generated[output.request_id] = len(output.outputs[0].token_ids)
            params = (output.kv_transfer_params or {}) if output.finished else {}
            if "eldr" in params:
                signatures.append([params["eldr"]["tokens"], params["eldr"]["exact"]])
    return {"seconds": seconds, "generated": list(generated.values()), "signatures": signatures}


def records(engine: Any) -> Callable[[], list[list[Any]]]:
    """Return what tells the activation records that are new since the last call: tokens, and whether they are exact."""
    from eldr.engine.decode.ring import RingReader, rings_of

    ring = RingReader(rings_of(engine.vllm_config.instance_id, 1)[0])
    told = 0

    def new() -> list[list[Any]]:
        nonlocal told
        read = [json.loads(ring.get(number) or b"{}") for number in range(told, ring.written)]
        told += len(read)
        return [[record.get("tokens"), record.get("exact")] for record in read]

    return new


def serve(setup: dict[str, Any], questions: TextIO, answers: TextIO) -> None:
    """Answer lines until there are no more."""
    engine = make(setup)
    names = itertools.count()
    counts_decodes = setup["counting"] and setup["role"] == "kv_consumer"
    new_records = records(engine) if counts_decodes else list
    core = engine.engine_core.engine_core
    told = {
        "connector": engine.vllm_config.kv_transfer_config is not None,
        "scheduler": type(core.scheduler).__name__,
        "runner": type(core.model_executor.driver_worker.worker.model_runner).__name__,
    }
    print(json.dumps(told), file=answers, flush=True)
    for line in questions:
        asked = json.loads(line)
        answer = run(engine, asked["prompts"], asked["tokens"], names)
        print(json.dumps(answer | {"records": new_records()}), file=answers, flush=True)


def main() -> None:
    """Serve on stdin and stdout; whatever vLLM prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(json.loads(sys.argv[1]), sys.stdin, answers)


if __name__ == "__main__":
    main()
