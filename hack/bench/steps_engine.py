"""Decode steps of one vLLM engine in this process: batches of one kind of text, of several, and of copies. Needs vLLM.

    python hack/bench/steps_engine.py '{"model": "...", "dtype": "float32", "batches": [4, 8], "tokens": 32, "seed": 0}'

Writes a JSON line per step of a whole batch to stdout: ``{"plan", "kind", "batch", "seconds", "wall", "experts"}``. ``seconds`` is
the CPU time of the one thread that does everything: on a machine shared with others it says what the clock would on one's own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

# one process and one thread, so that its CPU time is all there is
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}

PROMPT = 40


class Plan(NamedTuple):
    """A batch: a name for the table, how many requests, of which kinds of text, and how many of them differ."""

    name: str
    batch: int
    kinds: list[str]
    distinct: int


def plans(kinds: list[str], batches: list[int], rng: Any) -> list[Plan]:
    """Return the batches of a run, in random order, so that no kind of batch has one part of the time to itself."""
    found: list[Plan] = []
    for batch in batches:
        found += [
            Plan(f"copies of {n}", batch, list(rng.choice(kinds, n)), n) for n in (1, 2, 4, 8) if n < batch
        ]
        found += [Plan("one kind", batch, [kind], batch) for kind in kinds]
        found += [
            Plan("two kinds", batch, list(rng.choice(kinds, 2, replace=False)), batch) for _ in range(4)
        ]
        found += [Plan("all kinds", batch, kinds, batch) for _ in range(6)]
    return [found[at] for at in rng.permutation(len(found))]


class Engine:
    """An engine whose steps tell which experts they chose."""

    def __init__(self, model: str, dtype: str) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.layers.fused_moe.layer import MoERunner
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                dtype=dtype,  # type: ignore[arg-type]  # checked by vLLM
                enforce_eager=True,
                max_model_len=2048,
                max_num_batched_tokens=2048,
                max_num_seqs=64,
                block_size=32,
                kv_cache_memory_bytes=256 << 20,
                enable_prefix_caching=False,
                distributed_executor_backend="uni",
                disable_log_stats=True,
                seed=0,
            )
        )
        self._chosen: list[Any] = []
        context = self._engine.vllm_config.compilation_config.static_forward_context
        for layer in context.values():
            if isinstance(layer, MoERunner):
                layer.router.set_capture_fn(self._chosen.append)

    def run(
        self, requests: list[tuple[str, list[int], int]], tokens: int
    ) -> Iterator[tuple[float, float, list[int]]]:
        """Run requests of a name, a prompt and a seed together; yield CPU seconds, wall seconds and experts per layer of the steps.

        Only steps that make one token for every request count: neither prefills nor the first and last ones.
        """
        from vllm import SamplingParams

        for name, prompt, seed in requests:
            sampling = SamplingParams(
                max_tokens=tokens, ignore_eos=True, temperature=0.8, seed=seed, detokenize=False
            )
            self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        known: set[str] = set()
        while self._engine.has_unfinished_requests():
            self._chosen.clear()
            cpu, wall = time.process_time(), time.perf_counter()
            outputs = self._engine.step()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            names = {output.request_id for output in outputs}
            rows = self._chosen[0].shape[0] if self._chosen else 0
            if len(names & known) == rows == len(requests):
                yield cpu, wall, [int(ids.unique().numel()) for ids in self._chosen]
            known |= names


def measure(setup: dict[str, Any], out: TextIO) -> None:
    """Run all batches and write their steps."""
    import numpy as np
    from transformers import AutoTokenizer

    from eldr_tiny_moe import corpus

    texts = corpus.load()
    prompts = corpus.Prompts(texts, setup["seed"])
    rng = np.random.default_rng(setup["seed"])
    encode = AutoTokenizer.from_pretrained(setup["model"]).encode
    engine = Engine(setup["model"], setup["dtype"])
    for number, plan in enumerate(plans(sorted(texts), setup["batches"], rng)):
        chosen = [
            prompts.tokens(plan.kinds[at % len(plan.kinds)], PROMPT, encode) for at in range(plan.distinct)
        ]
        # a copy has its seed too: it says the same, and uses the same experts
        requests = [
            (f"{number}-{at}", chosen[at % plan.distinct], 1000 * number + at % plan.distinct)
            for at in range(plan.batch)
        ]
        for cpu, wall, experts in engine.run(requests, setup["tokens"]):
            row = {
                "plan": number,
                "kind": plan.name,
                "batch": plan.batch,
                "seconds": cpu,
                "wall": wall,
                "experts": experts,
            }
            print(json.dumps(row), file=out, flush=True)


def main() -> None:
    """Measure what the argument says; whatever vLLM prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    measure(json.loads(sys.argv[1]), out)


if __name__ == "__main__":
    main()
