"""Decode steps of one vLLM engine in this process: batches of one kind of text, of several, and of copies. Needs vLLM.

    python -P -m eldr_steps.batches '{"model": "...", "dtype": "float32", "batches": [4, 8], "tokens": 32, "seed": 0}'

Writes a JSON line per step of a whole batch to stdout: ``{"plan", "kind", "batch", "seconds", "wall", "experts", "reference"}``,
the last one being the seconds of a step that is always the same, before and after the batch.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

from eldr_steps.engine import Engine

PROMPT = 40
REFERENCES = 5


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


def run(
    engine: Engine, requests: list[tuple[str, list[int], int]], tokens: int
) -> Iterator[tuple[float, float, list[int]]]:
    """Run requests of a name, a prompt and a seed together; yield CPU seconds, wall seconds and experts per layer of the steps.

    Only steps that make one token for every request count: neither prefills nor the first and last ones.
    """
    for name, prompt, seed in requests:
        engine.add(name, prompt, tokens, seed)
    known: set[str] = set()
    while engine.busy:
        step = engine.step()
        if len(known.intersection(step.names)) == step.rows == len(requests):
            yield step.seconds, step.wall, step.experts
        known.update(step.names)


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
    before = references(engine)
    for number, plan in enumerate(plans(sorted(texts), setup["batches"], rng)):
        chosen = [
            prompts.tokens(plan.kinds[at % len(plan.kinds)], PROMPT, encode) for at in range(plan.distinct)
        ]
        # a copy has its seed too: it says the same, and uses the same experts
        requests = [
            (f"{number}-{at}", chosen[at % plan.distinct], 1000 * number + at % plan.distinct)
            for at in range(plan.batch)
        ]
        steps = list(run(engine, requests, setup["tokens"]))
        after = references(engine)
        reference = statistics.median(before + after)
        before = after
        for cpu, wall, experts in steps:
            row = {
                "plan": number,
                "kind": plan.name,
                "batch": plan.batch,
                "seconds": cpu,
                "wall": wall,
                "experts": experts,
                "reference": reference,
            }
            print(json.dumps(row), file=out, flush=True)


def references(engine: Engine) -> list[float]:
    """Return the seconds of some steps that are always the same."""
    return [engine.reference() for _ in range(REFERENCES)]


def main() -> None:
    """Measure what the argument says; whatever vLLM prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    measure(json.loads(sys.argv[1]), out)


if __name__ == "__main__":
    main()
