"""How well prefill choice finds cached prefixes: conversations on simulated engines with finite prefix caches.

Compared are a random engine; the first rule of this router (rendezvous hashing of the first 1 KiB of text, within 1.25
times the mean load of the own router); the present one; the same with a session header; and oracles that see caches
and loads as they are: both take the admitted engine that holds most of the prompt, but one spreads first turns over the
least busy engines; the one that finds more counts.

Writes ``docs/benchmarks/affinity.md``. Deterministic but for the speed.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import timeit
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from eldr_bench.machine import ROOT
from eldr_bench.proof import require
from eldr_lab.studies.prefill_pool import (
    REPORTED,
    Result,
    Rule,
    Turn,
    View,
    World,
    ceiling,
    simulate,
    workload,
)
from eldr_router.placement.affinity import BOUND, SLACK, PrefixAffinity
from eldr_router.placement.prefixes import chain

OUT = ROOT / "docs" / "benchmarks" / "affinity.md"


def any_engine(world: World, number: int) -> Rule:
    draw = random.Random(number)
    return lambda _: draw.randrange(world.engines)


def first_rule(world: World, number: int) -> Rule:  # noqa: ARG001
    def choose(view: View) -> int:
        limit = math.ceil(BOUND * (sum(view.own) + 1) / world.engines)

        def score(at: int) -> bytes:
            return blake2b(view.turn.text, key=b"%d" % at).digest()

        return max((at for at in range(world.engines) if view.own[at] < limit), key=score)

    return choose


def _names(world: World) -> list[str]:
    """Return what the engines are called."""
    return [f"prefill-{at}" for at in range(world.engines)]


def present_rule(world: World, number: int) -> Rule:  # noqa: ARG001
    names = _names(world)
    routers = [PrefixAffinity() for _ in range(world.routers)]
    return lambda view: (
        routers[view.turn.router].choose(view.turn.prompt, names, view.known, prefix=view.turn.stem).engine
    )


def session_rule(world: World, number: int) -> Rule:  # noqa: ARG001
    names = _names(world)
    routers = [PrefixAffinity() for _ in range(world.routers)]
    return lambda view: (
        routers[view.turn.router]
        .choose(view.turn.prompt, names, view.known, session=b"session %d" % view.turn.session)
        .engine
    )


def _admitted(world: World, view: View) -> list[int]:
    limit = BOUND * sum(view.true) / world.engines + SLACK
    return [at for at in range(world.engines) if view.true[at] <= limit]


def greedy_oracle(world: World, number: int) -> Rule:  # noqa: ARG001
    def choose(view: View) -> int:
        def rank(at: int) -> tuple[int, int, float]:
            engine = view.engines[at]
            return engine.holds(view.turn.blocks), -view.true[at], -engine.busy

        return max(_admitted(world, view), key=rank)

    return choose


def spreading_oracle(world: World, number: int) -> Rule:
    greedy = greedy_oracle(world, number)

    def choose(view: View) -> int:
        if view.turn.number:
            return greedy(view)
        return min(_admitted(world, view), key=lambda at: (view.true[at], view.engines[at].busy))

    return choose


RULES: dict[str, Callable[[World, int], Rule]] = {
    "random": any_engine,
    "first 1 KiB": first_rule,
    "prefixes": present_rule,
    "session header": session_rule,
}
ORACLES = (greedy_oracle, spreading_oracle)


WORLDS = (
    World("no system prompt"),
    World("one system prompt of 2 KB", prompts=1),
    World("five of 2 KB", prompts=5),
    World("one of 24 KB", prompts=1, prompt_bytes=24_000),
    World("one of 2 KB, no chat format", prompts=1, chat=False),
    World("five of 2 KB, caches a fifth", prompts=5, cache=96 << 10),
    World("one of 2 KB, busy", prompts=1, sessions=400, think=5.0, horizon=100.0, speed=8000.0),
    World("60 documents of 16 KB, 8 questions each", documents=60, sessions=480, turns=1.0),
    World("nothing shared, one turn, busy", sessions=1500, turns=1.0, horizon=100.0, speed=1700.0),
)
SEEDS = 5


def best(world: World, turns: Sequence[Turn], number: int) -> Result:
    """Return the result of the oracle that finds more."""
    return max(simulate(world, turns, oracle(world, number)) for oracle in ORACLES)


def measure(world: World) -> tuple[float, dict[str, list[Result]]]:
    """Return the ceiling and every rule's results, one per seed."""
    workloads = [workload(world, number) for number in range(SEEDS)]
    results = {
        name: [simulate(world, turns, rule(world, number)) for number, turns in enumerate(workloads)]
        for name, rule in RULES.items()
    }
    results["oracle"] = [best(world, turns, number) for number, turns in enumerate(workloads)]
    most = [ceiling(turns) for turns in workloads]
    for (one, runs), (other, others) in itertools.combinations(results.items(), 2):
        require(runs != others, f"{world}: {one} and {other} chose the same engines")
    for name, runs in results.items():
        found = [run.hits for run in runs]
        within = all(hits <= bound for hits, bound in zip(found, most, strict=True))
        require(within, f"{world}: {name} finds {found}, more than was sent before, {most}")
    return statistics.fmean(most), results


def _mean(results: Sequence[Result], what: str) -> float:
    return statistics.fmean(getattr(result, what) for result in results)


def _row(world: World) -> tuple[str, str]:
    most, results = measure(world)
    ratios = [
        new.hits / best.hits
        for new, best in zip(results["prefixes"], results["oracle"], strict=True)
        if best.hits
    ]
    of_oracle = (
        f"**{statistics.fmean(ratios):.3f}** ({min(ratios):.3f} .. {max(ratios):.3f})" if ratios else ""
    )
    name = f"| {world.name} | {world.routers} | "
    hits = [f"{_mean(each, 'hits'):.3f}" for each in results.values()]
    rest = [
        " / ".join(
            f"{_mean(results[rule], what):.{digits}f}" for rule in ("first 1 KiB", "prefixes", "oracle")
        )
        for what, digits in (("stayed", 2), ("imbalance", 2), ("wait", 2))
    ]
    return name + " | ".join([*hits, f"{most:.3f}", of_oracle]) + " |", name + " | ".join(rest) + " |"


def _speed() -> str:
    rows = []
    names = [f"prefill-{at}" for at in range(8)]
    for size in (2 << 10, 8 << 10, 64 << 10, 1 << 20):
        prompt = random.Random(0).randbytes(size)
        router = PrefixAffinity()
        chained = timeit.repeat(lambda: chain(prompt), number=100, repeat=9)  # noqa: B023
        chosen = timeit.repeat(
            lambda: router.choose(prompt, names, [0] * 8, prefix=1500),  # noqa: B023
            number=100,
            repeat=9,
        )
        figures = [statistics.median(times) * 1e4 for times in (chained, chosen)]
        rows.append(f"| {size >> 10} KB | {len(chain(prompt))} | {figures[0]:.0f} us | {figures[1]:.0f} us |")
    return "\n".join(rows)


def main() -> None:
    """Simulate every world with one router and with four, and write the page."""
    rows = [_row(replace(world, routers=routers)) for world in WORLDS for routers in (1, 4)]
    world = World("")
    text = f"""# Which prefill engine: how many prefixes are found

Written by `make -C hack/lab bench-affinity`, a simulation. Nothing here ran on a real engine. The rules: [router](../reference/router.md#which-prefill-engine).

- {world.engines} prefill engines have caches of {world.cache >> 10} KiB of text each. {world.sessions} conversations have {world.turns:g} turns on average within five minutes.
- 1 or 4 routers get the turns at random. They know each other's prefills in flight as of {REPORTED} s ago.
- Figures are means of {SEEDS} seeds, (smallest .. largest).
- The *oracle* sees caches and loads as they are, under the same bound on load. The *ceiling* is what anybody sent before.
- A session header decides alone. If every question about a document has its own, what they share is lost.

## Share of prompt bytes found in a cache

| shared | routers | {" | ".join(RULES)} | oracle | ceiling | prefixes / oracle |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(hits for hits, _ in rows)}

## What it does to the engines

First 1 KiB / prefixes / oracle. *Stayed*: turns that land where the conversation's last one did. *Imbalance*: the busiest engine's work
over the mean. *Prefill*: 95th percentile from arrival to result, seconds. A rule that finds less has more to compute, so the
old one never catches up in the busy rows.

| shared | routers | stayed | imbalance | prefill |
|---|---|---|---|---|
{chr(10).join(rest for _, rest in rows)}

## What it costs the router

8 engines, medians, on a machine with other work.

| prompt | blocks | `chain` | `choose`, `chain` included |
|---|---|---|---|
{_speed()}
"""
    OUT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
