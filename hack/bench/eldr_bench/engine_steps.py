"""A vLLM engine in this process alone, without server and transport, that tells the time of its steps. Needs vLLM.

    python hack/bench/eldr_bench/engine_steps.py '{"role": "kv_producer", "counting": true, "clock": "perf_counter", "arguments": {...}}'

answers each line of stdin, ``{"prompts": [[ids], ...], "tokens": n}``, by the seconds of every step, the tokens generated and the experts
counted. It stands still meanwhile, so that two of them can take turns on a machine of few cores.
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
        **setup["arguments"],
        distributed_executor_backend="uni",
        kv_transfer_config=connector if setup["counting"] else None,
    )
    return LLMEngine.from_engine_args(arguments)


def kind(one: Any, kinds: dict[str, str]) -> str:
    """Return what an object is, by the modules of the classes that it derives from; the first that is known tells."""
    modules = [base.__module__ for base in type(one).__mro__]
    return next(name for module, name in kinds.items() if module in modules)


SCHEDULERS = {
    "vllm.v1.core.sched.async_scheduler": "asynchronous",
    "vllm.v1.core.sched.scheduler": "synchronous",
}
RUNNERS = {"vllm.v1.worker.gpu.model_runner": "V2", "vllm.v1.worker.gpu_model_runner": "V1"}


def run(
    engine: Any,
    prompts: list[list[int]],
    tokens: int,
    names: itertools.count[int],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Run requests to their end; return the seconds of every step, each request's tokens and what the plug-in counted."""
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
    seconds, generated, signatures = [], {}, {}
    while engine.has_unfinished_requests():
        begun = clock()
        outputs = engine.step()
        seconds.append(clock() - begun)
        for output in outputs:
            generated[output.request_id] = list(output.outputs[0].token_ids)
            params = (output.kv_transfer_params or {}) if output.finished else {}
            if "eldr" in params:
                signatures[output.request_id] = params["eldr"]
    return {"seconds": seconds, "generated": generated, "signatures": signatures}


def records(engine: Any) -> Callable[[], list[dict[str, Any]]]:
    """Return what tells the activation records that are new since the last call."""
    from eldr.engine.decode.ring import RingReader, rings_of

    ring = RingReader(rings_of(engine.vllm_config.kv_transfer_config.engine_id, 1)[0])
    told = 0

    def new() -> list[dict[str, Any]]:
        nonlocal told
        read = [json.loads(ring.get(number) or b"{}") for number in range(told, ring.written)]
        told += len(read)
        return read

    return new


def serve(setup: dict[str, Any], questions: TextIO, answers: TextIO) -> None:
    """Answer lines until there are no more."""
    engine = make(setup)
    names, clock = itertools.count(), getattr(time, setup["clock"])
    counts_decodes = setup["counting"] and setup["role"] == "kv_consumer"
    new_records = records(engine) if counts_decodes else list
    core = engine.engine_core.engine_core
    told = {
        "connector": engine.vllm_config.kv_transfer_config is not None,
        "scheduler": kind(core.scheduler, SCHEDULERS),
        "runner": kind(core.model_executor.driver_worker.worker.model_runner, RUNNERS),
    }
    print(json.dumps(told), file=answers, flush=True)
    for line in questions:
        asked = json.loads(line)
        answer = run(engine, asked["prompts"], asked["tokens"], names, clock)
        print(json.dumps(answer | {"records": new_records()}), file=answers, flush=True)


def main() -> None:
    """Serve on stdin and stdout; whatever vLLM prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(json.loads(sys.argv[1]), sys.stdin, answers)


if __name__ == "__main__":
    main()
