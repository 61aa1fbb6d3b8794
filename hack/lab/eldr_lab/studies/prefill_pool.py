"""A pool of simulated prefill engines with finite prefix caches, and the conversations that it gets.

Engines compute prompts one after another, in a time that grows with what they have not cached when a prompt arrives.
Several routers get the turns at random and know each other's prefills in flight as engines last reported them.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
