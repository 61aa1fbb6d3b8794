"""Batches of one kind of text, of several, and of copies, run step by step on a real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from eldr_lab.steps.engines import Engine
from eldr_lab.steps.law import Row
from eldr_lab.steps.machine import Step
from eldr_tiny_moe import corpus

PROMPT = 40
_EVERY = 3
"""Steps between two that are always the same: others who share the machine come and go within parts of a second."""


class Plan(NamedTuple):
    """A batch: a name for the table, how many requests, of which kinds of text, and how many of them differ."""

    name: str
    batch: int
    kinds: list[str]
    distinct: int


def plans(kinds: list[str], batches: list[int], rng: np.random.Generator) -> list[Plan]:
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


def measure(
    engine: Engine, batches: list[int], tokens: int, seed: int, progress: Callable[[int, int], None]
) -> Iterator[Row]:
    """Run all batches on a fork of an engine; yield the steps that make one token for every request of a batch.

    Neither prefills nor the first and last steps do. The engine itself runs, every few steps, one that is always the same.
    """
    texts = corpus.load()
    prompts = corpus.Prompts(texts, seed)
    rng = np.random.default_rng(seed)
    todo = plans(sorted(texts), batches, rng)
    with engine.forks(1) as (fork,):
        for number, plan in enumerate(todo):
            chosen = [
                prompts.tokens(plan.kinds[at % len(plan.kinds)], PROMPT, engine.encode)
                for at in range(plan.distinct)
            ]
            for at in range(plan.batch):
                # a copy has its seed too: it says the same, and uses the same experts
                seed_of = 1000 * number + at % plan.distinct
                fork.add(f"{number}-{at}", chosen[at % plan.distinct], tokens, seed_of)
            for step, reference in _beside(_whole(fork, plan.batch), engine.reference):
                yield Row(number, plan.name, plan.batch, step.seconds, step.active, reference)
            progress(number + 1, len(todo))


def _whole(engine: Engine, batch: int) -> Iterator[Step]:
    """Run an engine until it is idle; yield the steps in which all requests got a token that is not their first."""
    known: set[str] = set()
    running = batch
    while running:
        step = engine.step()
        if len(known.intersection(step.names)) == step.rows == batch:
            yield step
        known.update(step.names)
        running -= len(step.ended)


def _beside(steps: Iterator[Step], reference: Callable[[], float]) -> Iterator[tuple[Step, float]]:
    """Yield each step with the mean of the references run before and after it."""
    before = reference()
    some: list[Step] = []
    for step in steps:
        some.append(step)
        if len(some) == _EVERY:
            after = reference()
            yield from ((one, (before + after) / 2) for one in some)
            before, some = after, []
    yield from ((one, before) for one in some)
