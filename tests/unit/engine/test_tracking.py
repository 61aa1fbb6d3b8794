"""Which positions count, against an oracle that keeps every position of every request."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr.engine.decode.tracking import Tracker

BLOCK = 4


class Pool:
    """KV blocks, the last freed is the first used again; and what a worker makes of plans and slots."""

    def __init__(self, n_rows):
        self.tracker = Tracker(n_rows, BLOCK)
        self.n_rows = n_rows
        self.free = list(range(64))
        self.blocks = {}
        self.rows = {}  # block -> row, first offset
        self.counts = {row: Counter() for row in range(n_rows)}
        self.read = {}
        self.ended = {}

    def grow(self, request, tokens):
        blocks = self.blocks.setdefault(request, [])
        while len(blocks) * BLOCK < tokens:
            blocks.append(self.free.pop())

    def drop(self, request):
        self.free += reversed(self.blocks.pop(request, []))

    def step(self, scheduled, preempted=()):
        plan = self.tracker.step(scheduled, preempted, self.blocks.__getitem__)
        for request, row in plan.release:
            self.read[request] = self.counts[row]
            self.counts[row] = Counter()
        for block in plan.unmap:
            self.rows.pop(block, None)
        for block, row, offset in plan.map:
            self.rows[block] = row, offset
        for request, computed, tokens in scheduled:
            for position in range(computed, computed + tokens):
                block = self.blocks[request][position // BLOCK]
                row, first = self.rows.get(block, (None, 0))
                if row is not None and position % BLOCK >= first:
                    self.counts[row][request, position] += 1

    def end(self, request):
        self.ended[request] = self.tracker.end(request)
        self.drop(request)


@st.composite
def lives(draw):
    n = draw(st.integers(1, 6))
    return [
        {
            "prompt": draw(st.integers(1, 19)),
            "answer": draw(st.integers(1, 11)),
            "start": draw(st.integers(0, 30)),
            "cached": draw(st.integers(0, 18)),
            "chunk": draw(st.integers(1, 9)),
            "preempt_at": draw(st.none() | st.integers(1, 8)),
        }
        for _ in range(n)
    ]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(lives=lives())
def test_every_fed_token_counts_once_and_nothing_else(lives):
    pool = Pool(n_rows=len(lives))
    state = {}
    for clock in range(400):
        scheduled, preempted, ending = [], [], []
        for n, life in enumerate(lives):
            name = f"r{n}"
            if clock == life["start"]:
                pool.tracker.add(name, life["prompt"])
                state[name] = {
                    "computed": min(life["cached"], life["prompt"] - 1),
                    "made": 0,
                    "preempted": False,
                }
            if name not in state or name in pool.ended:
                continue
            s = state[name]
            if life["preempt_at"] is not None and not s["preempted"] and s["made"] == life["preempt_at"]:
                s["preempted"], s["computed"] = True, 0
                pool.drop(name)
                preempted.append(name)
                continue
            known = life["prompt"] + s["made"]
            tokens = min(life["chunk"], known - s["computed"])
            pool.grow(name, s["computed"] + tokens)
            scheduled.append((name, s["computed"], tokens))
            s["computed"] += tokens
            if s["computed"] == known:
                s["made"] += 1
                if s["made"] == life["answer"]:
                    ending.append(name)
        pool.step(scheduled, preempted)
        for name in ending:
            pool.end(name)
        if len(pool.ended) == len(lives):
            break
    pool.step([])
    for n, life in enumerate(lives):
        name = f"r{n}"
        expected = {(name, p): 1 for p in range(life["prompt"], life["prompt"] + life["answer"] - 1)}
        ended = pool.ended[name]
        assert ended.tokens == len(expected)
        assert ended.complete
        assert pool.read.get(name, Counter()) == expected
    assert not pool.rows
    assert len(pool.tracker) == 0


def test_without_a_free_row_a_request_is_reported_incomplete_and_takes_nothing_from_others():
    pool = Pool(n_rows=1)
    for name in ("a", "b"):
        pool.tracker.add(name, 3)
        pool.grow(name, 3)
    pool.step([("a", 0, 3), ("b", 0, 3)])
    for name in ("a", "b"):
        pool.grow(name, 4)
    pool.step([("a", 3, 1), ("b", 3, 1)])
    pool.end("a")
    pool.end("b")
    pool.step([])
    assert pool.ended["a"].complete
    assert not pool.ended["b"].complete
    assert pool.ended["b"].row is None
    assert pool.read == {"a": Counter({("a", 3): 1})}


def test_a_request_that_ends_while_its_next_step_is_already_scheduled_counts_that_token_too():
    # asynchronous scheduling: the end of step n is seen after step n + 1 was sent out
    pool = Pool(n_rows=1)
    pool.tracker.add("a", 2)
    pool.grow("a", 4)
    pool.step([("a", 0, 2)])
    pool.step([("a", 2, 1)])
    pool.step([("a", 3, 1)])
    pool.end("a")
    pool.step([])
    assert pool.ended["a"].tokens == 2
    assert pool.read["a"] == Counter({("a", 2): 1, ("a", 3): 1})


def test_a_request_that_never_ran_leaves_nothing():
    tracker = Tracker(1, BLOCK)
    tracker.add("a", 5)
    assert tracker.end("a") is None
    assert tracker.end("unknown") is None
    assert not tracker.step([], ["gone"], {}.__getitem__)
