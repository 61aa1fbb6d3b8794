"""How well prefill choice finds cached prefixes: conversations on simulated engines with finite prefix caches.

Compared are a random engine; the first rule of this router (rendezvous hashing of the first 1 KiB of text, within 1.25
times the mean load of the own router); the present one; the same with a session header; and oracles that see caches
and loads as they are: both take the admitted engine that holds most of the prompt, but one spreads first turns over the
least busy engines; the one that finds more counts.

Engines compute prompts one after another, in a time that grows with what they have not cached when a prompt arrives.
Several routers get the turns at random and know each other's prefills in flight as engines last reported them.

Writes ``docs/benchmarks/affinity.md``. Deterministic but for the speed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
import statistics
import timeit
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from eldr_bench.machine import ROOT
from eldr_bench.proof import require
from eldr_lab.report import filled, table
from eldr_router.placement.affinity import BOUND, SLACK, PrefixAffinity
from eldr_router.placement.prefixes import chain

OUT = ROOT / "docs" / "benchmarks" / "affinity.md"
KV = 64  # bytes of text in a KV block of 16 tokens
REPORTED = 0.25  # seconds between two reports of engines
OVERHEAD = 0.01  # seconds of every prefill


@dataclass(frozen=True)
class World:
    """What is simulated: sizes in bytes of text (four to a token), times in seconds."""

    name: str
    prompts: int = 0  # shared system prompts
    prompt_bytes: int = 2048
    sessions: int = 200
    turns: float = 8.0  # mean, geometric
    think: float = 20.0  # mean pause between turns
    horizon: float = 300.0  # sessions begin in it
    speed: float = 80_000.0  # an engine's prefill, bytes/s
    cache: int = 512 << 10  # bytes of text that an engine's blocks hold
    engines: int = 8
    routers: int = 1
    chat: bool = True
    documents: int = 0  # that first messages begin with
    document_bytes: int = 16 << 10


class Turn(NamedTuple):
    at: float
    session: int
    number: int
    router: int
    prompt: bytes
    stem: int
    text: bytes  # what the first rule looked at
    blocks: tuple[int, ...]  # of KV, as the engine caches them


def workload(world: World, number: int) -> list[Turn]:
    """Return the turns of all sessions in the order in which they arrive."""
    draw = random.Random(number)
    system = [_text(draw, world.prompt_bytes) for _ in range(world.prompts)]
    documents = [_text(draw, world.document_bytes) for _ in range(world.documents)]
    turns: list[Turn] = []
    for session in range(world.sessions):
        messages = [{"role": "system", "content": draw.choice(system)}] if system else []
        at = draw.uniform(0, world.horizon)
        for turn in itertools.count():
            said = _text(draw, int(draw.lognormvariate(5.5, 1.0)) + 20)
            messages.append(
                {"role": "user", "content": (draw.choice(documents) if documents and not turn else "") + said}
            )
            prompt = json.dumps(messages, separators=(",", ":")).encode()
            if not turn:
                stem = len(prompt) - 1 if world.chat else 0
            text = "\n".join(message["content"] for message in messages)[:1024].encode()
            turns.append(
                Turn(at, session, turn, draw.randrange(world.routers), prompt, stem, text, _blocks(prompt))
            )
            if draw.random() < 1 / world.turns:
                break
            messages.append(
                {"role": "assistant", "content": _text(draw, int(draw.lognormvariate(6.5, 0.8)) + 20)}
            )
            at += draw.expovariate(1 / world.think) + 1
    return sorted(turns)


def _text(draw: random.Random, size: int) -> str:
    return draw.randbytes((size + 1) // 2).hex()[:size]


def _blocks(prompt: bytes) -> tuple[int, ...]:
    above, blocks = 0, []
    for begin in range(0, len(prompt) - 1, KV):  # without the closing bracket, which the next turn has not
        above = hash((above, prompt[begin : min(begin + KV, len(prompt) - 1)]))
        blocks.append(above)
    return tuple(blocks)


@dataclass
class Engine:
    """A prefill engine: blocks in an LRU, prompts one after another."""

    blocks: int
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    free_at: float = 0.0
    busy: float = 0.0

    def holds(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are cached."""
        return next((at for at, block in enumerate(blocks) if block not in self.cache), len(blocks))

    def keep(self, blocks: Sequence[int]) -> None:
        """Cache a prompt's blocks; the ends of the oldest prompts go first."""
        for block in reversed(blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.blocks:
            self.cache.popitem(last=False)


class View(NamedTuple):
    """What a rule may look at when it chooses."""

    turn: Turn
    own: list[int]  # in flight from this router
    known: list[int]  # of all routers, the others' as last reported
    true: list[int]
    engines: list[Engine]


Rule = Callable[[View], int]


class Result(NamedTuple):
    """Shares 0..1; ``imbalance`` is the busiest engine's work over the mean, ``wait`` the 95th percentile in seconds."""

    hits: float
    stayed: float
    imbalance: float
    wait: float


def simulate(world: World, turns: Sequence[Turn], rule: Rule) -> Result:
    """Let one rule place all turns."""
    engines = [Engine(world.cache // KV) for _ in range(world.engines)]
    own = [[0] * world.engines for _ in range(world.routers)]
    shared, shared_at = [row[:] for row in own], -math.inf
    running: list[tuple[float, int, int, int, Sequence[int]]] = []
    last: dict[int, int] = {}
    hit = total = later = stayed = 0
    waits: list[float] = []
    for serial, turn in enumerate(turns):
        while running and running[0][0] <= turn.at:
            _, _, router, done, blocks = heapq.heappop(running)
            own[router][done] -= 1
            engines[done].keep(blocks)
        if turn.at - shared_at >= REPORTED:
            shared, shared_at = [row[:] for row in own], turn.at
        mine = own[turn.router]
        known = [
            count + sum(row[at] for router, row in enumerate(shared) if router != turn.router)
            for at, count in enumerate(mine)
        ]
        at = rule(View(turn, mine, known, [sum(column) for column in zip(*own, strict=True)], engines))
        engine, size = engines[at], len(turn.prompt)
        cached = min(engine.holds(turn.blocks) * KV, size)
        took = OVERHEAD + (size - cached) / world.speed
        begin = max(turn.at, engine.free_at)
        engine.free_at = begin + took
        engine.busy += took
        mine[at] += 1
        heapq.heappush(running, (engine.free_at, serial, turn.router, at, turn.blocks))
        waits.append(engine.free_at - turn.at)
        hit += cached
        total += size
        if turn.number:
            later += 1
            stayed += last[turn.session] == at
        last[turn.session] = at
    work = [engine.busy for engine in engines]
    return Result(
        hit / total,
        stayed / max(1, later),
        max(work) / statistics.fmean(work),
        statistics.quantiles(waits, n=20)[-1],
    )


def ceiling(turns: Sequence[Turn]) -> float:
    """Return the share of all prompts that anybody sent before: no caches can hold more."""
    seen: set[int] = set()
    hit = total = 0
    for turn in turns:
        known = next((at for at, block in enumerate(turn.blocks) if block not in seen), len(turn.blocks))
        hit += min(known * KV, len(turn.prompt))
        total += len(turn.prompt)
        seen.update(turn.blocks)
    return hit / total


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


def _router_rule(world: World, keys: Callable[[Turn], Mapping[str, Any]]) -> Rule:
    names, routers = _names(world), [PrefixAffinity() for _ in range(world.routers)]
    return lambda view: (
        routers[view.turn.router].choose(view.turn.prompt, names, view.known, **keys(view.turn)).position
    )


def present_rule(world: World, number: int) -> Rule:  # noqa: ARG001
    return _router_rule(world, lambda turn: {"prefix": turn.stem})


def session_rule(world: World, number: int) -> Rule:  # noqa: ARG001
    return _router_rule(world, lambda turn: {"session": b"session %d" % turn.session})


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


def _rows(world: World) -> tuple[tuple[str, ...], tuple[str, ...]]:
    most, results = measure(world)
    pairs = zip(results["prefixes"], results["oracle"], strict=True)
    ratios = [new.hits / best.hits for new, best in pairs if best.hits]
    of_oracle = (
        f"**{statistics.fmean(ratios):.3f}** ({min(ratios):.3f} .. {max(ratios):.3f})" if ratios else ""
    )
    where = world.name, str(world.routers)
    hits = (f"{_mean(each, 'hits'):.3f}" for each in results.values())
    rest = (
        " / ".join(f"{_mean(results[rule], what):.2f}" for rule in ("first 1 KiB", "prefixes", "oracle"))
        for what in ("stayed", "imbalance", "wait")
    )
    return (*where, *hits, f"{most:.3f}", of_oracle), (*where, *rest)


def _speed() -> Iterator[tuple[str, ...]]:
    names = _names(World(""))
    for size in (2 << 10, 8 << 10, 64 << 10, 1 << 20):
        prompt, router = random.Random(0).randbytes(size), PrefixAffinity()
        calls = partial(chain, prompt), partial(router.choose, prompt, names, [0] * 8, prefix=1500)
        figures = (
            f"{1e4 * statistics.median(timeit.repeat(call, number=100, repeat=9)):.0f} us" for call in calls
        )
        yield f"{size >> 10} KB", str(len(chain(prompt))), *figures


def main() -> None:
    """Simulate every world with one router and with four, and write the page."""
    rows = [_rows(replace(world, routers=routers)) for world in WORLDS for routers in (1, 4)]
    world = World("")
    text = filled(
        Path(__file__).with_name("templates") / "affinity.txt", world=world, cache=world.cache >> 10, reported=REPORTED, seeds=SEEDS,
        hits=table(("shared", "routers", *RULES, "oracle", "ceiling", "prefixes / oracle"), [hits for hits, _ in rows]),
        rest=table(("shared", "routers", "stayed", "imbalance", "prefill"), [rest for _, rest in rows]),
        speed=table(("prompt", "blocks", "`chain`", "`choose`, `chain` included"), _speed()),
    )  # fmt: skip
    OUT.write_text(text)


if __name__ == "__main__":
    main()
