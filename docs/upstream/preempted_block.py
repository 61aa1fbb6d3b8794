"""vLLM 0.32.0 and 0.33.0: under priority scheduling a block that nobody computed is found in the prefix cache.

    python preempted_block.py MODEL

Needs no accelerator. MODEL is any model with full attention; further arguments go to the engine as ``--dtype float32 --enforce-eager``.
It asks three times for the same greedy token, and prints its log probability.
"""

import argparse
import os
import random

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

BLOCK = 32
SMALL = {"max_model_len": 288, "block_size": BLOCK, "num_gpu_blocks_override": 10, "max_num_seqs": 4}
CHUNKS = {"max_num_batched_tokens": 4 * BLOCK, "long_prefill_token_threshold": 2 * BLOCK}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    asked, more = parser.parse_known_args()
    options = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", asked.model, *more])
    for name, value in (SMALL | CHUNKS | {"scheduling_policy": "priority"}).items():
        setattr(options, name, value)
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(options))
    draw = random.Random(1)
    told: dict[str, float] = {}

    def add(name: str, tokens: list[int], answer: int, priority: int = 0) -> None:
        sampling = SamplingParams(max_tokens=answer, temperature=0, logprobs=1, ignore_eos=True)
        engine.add_request(name, {"prompt_token_ids": tokens}, sampling, priority=priority)

    def step() -> None:
        for output in engine.step():
            if output.finished:
                first = output.outputs[0]
                told[output.request_id] = first.logprobs[0][first.token_ids[0]].logprob

    def run() -> None:
        while engine.has_unfinished_requests():
            step()

    def prompt(n: int) -> list[int]:
        return [draw.randrange(300, 1000) for _ in range(n)]

    add("before", prompt(280), 1)  # its KV stays in every block
    run()
    low = prompt(8 * BLOCK - 1)
    add("preempted", low, 1, priority=1)
    step()
    add("urgent", prompt(BLOCK), 5)  # its second block is due in the step of the other one's last chunk
    run()
    add("from the cache", low, 1)
    run()
    assert engine.reset_prefix_cache()
    add("computed anew", low, 1)
    run()
    for name in ("preempted", "from the cache", "computed anew"):
        print(f"{name}: log probability {told[name]:.6f}")


if __name__ == "__main__":
    main()
