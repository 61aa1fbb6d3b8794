"""Which positions count, against an oracle that keeps every position of every request."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr.engine.decode.tracking import Tracker

BLOCK = 4
DRAFTS = 3
WINDOW = 2 * (1 + DRAFTS)


class Pool:
    """KV blocks, the last freed is the first used again; and what a worker makes of plans and slots."""

    def __init__(self, n_rows):
        self.tracker = Tracker(n_rows, BLOCK)
        self.n_rows = n_rows
        self.free = list(range(128))
        self.blocks = {}
        self.rows = {}  # block -> row, position of its first token, first position that counts
        self.settled = {row: Counter() for row in range(n_rows)}  # row -> request, position
        self.latest = {row: {} for row in range(n_rows)}  # row -> place -> request, position
        self.read = {}
        self.ended = {}

    def grow(self, request, tokens):
        blocks = self.blocks.setdefault(request, [])
        while len(blocks) * BLOCK < tokens:
            blocks.append(self.free.pop())

    def drop(self, request):
        self.free += reversed(self.blocks.pop(request, []))

    def step(self, scheduled, preempted=(), fed=None):
        """Apply a step's plan, then what it really feeds: with drafts less may be known when it is scheduled."""
        plan = self.tracker.step(scheduled, preempted, self.blocks.__getitem__)
        for request, row, last in plan.release:
            ended = Counter(who for who in self.latest[row].values() if who[1] <= last)
            self.read[request] = self.settled[row] + ended
            self.settled[row], self.latest[row] = Counter(), {}
        for block in plan.unmap:
            self.rows.pop(block, None)
        for block, *owner in plan.map:
            self.rows[block] = owner
        taken = set()
        for request, computed, tokens in scheduled if fed is None else fed:
            for position in range(computed, computed + tokens):
                row, begin, first = self.rows.get(self.blocks[request][position // BLOCK], (None, 0, 0))
                if row is not None and position >= first:
                    assert begin + position % BLOCK == position
                    self.keep(row, request, position, taken)

    def keep(self, row, request, position, taken):
        """Do what the kernel does with a token, see RequestRows."""
        held = self.latest[row].get(position % WINDOW)
        if held is None or position >= held[1]:
            assert (row, position % WINDOW) not in taken, "on a device the order of two would be chance"
            taken.add((row, position % WINDOW))
            if held is not None and position > held[1]:
                self.settled[row][held] += 1
            self.latest[row][position % WINDOW] = request, position

    def end(self, request):
        self.ended[request] = self.tracker.end(request)
        self.drop(request)


class Life:
    """A request: its prompt in chunks, then steps of a token and some drafts, of which chance accepts some; preempted once, perhaps."""

    def __init__(self, name, plan):
        self.name, self.plan = name, plan
        self.computed = min(plan["cached"], plan["prompt"] - 1)
        self.made = 0  # tokens of the answer, known to the device
        self.told = 0  # ... and to the scheduler
        self.untold = (0, 0)  # tokens and rejected drafts of a step that is under way
        self.preempted = False

    def hear(self):
        """Take what the last step made; return whether the answer is complete."""
        (tokens, _), self.untold = self.untold, (0, 0)
        self.told = min(self.told + tokens, self.plan["answer"])
        return self.told == self.plan["answer"]

    def preempt(self):
        """Lose all blocks, once, perhaps while a step is under way; tell whether."""
        if self.preempted or self.told != self.plan["preempt_at"]:
            return False
        self.preempted, self.computed, self.untold = True, 0, (self.untold[0], 0)
        return True

    def schedule(self):
        """Return where the scheduler believes that the next step begins, where it does, and its tokens."""
        known = self.plan["prompt"] + self.made
        begins, believed = self.computed, self.computed + self.untold[1]
        left = known - begins
        if left > 1 or not self.made:
            tokens = min(self.plan["chunk"], left)
            self.computed += tokens
            made, rejected = (1, 0) if self.computed == known else (0, 0)
        else:
            accepted = min(self.plan["accepts"][self.made % len(self.plan["accepts"])], self.plan["drafts"])
            tokens, made, rejected = 1 + self.plan["drafts"], 1 + accepted, self.plan["drafts"] - accepted
            self.computed += made
        self.made += made
        self.now = made, rejected
        return believed, begins, tokens


@st.composite
def lives(draw):
    n = draw(st.integers(1, 6))
    return [
        {
            "prompt": draw(st.integers(1, 19)),
            "answer": draw(st.integers(1, 25)),
            "start": draw(st.integers(0, 30)),
            "cached": draw(st.integers(0, 18)),
            "chunk": draw(st.integers(1, 40)),
            "drafts": draw(st.integers(0, DRAFTS)),
            "accepts": draw(st.lists(st.integers(0, DRAFTS), min_size=1, max_size=3)),
            "preempt_at": draw(st.none() | st.integers(1, 20)),
        }
        for _ in range(n)
    ]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(plans=lives(), ahead=st.booleans())
def test_every_fed_token_counts_once_and_nothing_else(plans, ahead):
    """Ahead: a step is scheduled before it is known what the one before it made, as asynchronous scheduling does."""
    pool = Pool(n_rows=len(plans))
    running = {}
    for clock in range(400):
        scheduled, fed, preempted, ran = [], [], [], []
        for n, plan in enumerate(plans):
            if clock == plan["start"]:
                life = running[f"r{n}"] = Life(f"r{n}", plan)
                pool.tracker.add(life.name, plan["prompt"], lambda life=life: life.told)
        for name, life in running.items():
            if name in pool.ended:
                continue
            if life.preempt():
                pool.drop(name)
                preempted.append(name)
                continue
            believed, begins, tokens = life.schedule()
            pool.grow(name, believed + tokens)
            scheduled.append((name, believed, tokens))
            fed.append((name, begins, tokens))
            ran.append(life)
        pool.step(scheduled, preempted, fed)
        for life in ran:
            if ahead:  # of the step before; this one's is told later
                over = life.hear()
                life.untold = life.now
            else:
                life.untold = life.now
                over = life.hear()
            if over:
                pool.end(life.name)
        for life in running.values():
            if life.name not in pool.ended and life not in ran and life.hear():
                pool.end(life.name)
        if len(pool.ended) == len(plans):
            break
    pool.step([])
    for n, plan in enumerate(plans):
        name = f"r{n}"
        expected = Counter((name, at) for at in range(plan["prompt"], plan["prompt"] + plan["answer"] - 1))
        ended = pool.ended[name]
        assert ended.tokens == len(expected)
        assert ended.complete
        assert pool.read.get(name, Counter()) == expected
    assert not pool.rows
    assert len(pool.tracker) == 0


def test_without_a_free_row_a_request_is_reported_incomplete_and_takes_nothing_from_others():
    pool = Pool(n_rows=1)
    generated = 0
    for name in ("a", "b"):
        pool.tracker.add(name, 3, lambda: generated)
        pool.grow(name, 3)
    pool.step([("a", 0, 3), ("b", 0, 3)])
    for name in ("a", "b"):
        pool.grow(name, 4)
    pool.step([("a", 3, 1), ("b", 3, 1)])
    generated = 2
    pool.end("a")
    pool.end("b")
    pool.step([])
    assert pool.ended["a"].complete
    assert not pool.ended["b"].complete
    assert pool.ended["b"].row is None
    assert pool.read == {"a": Counter([("a", 3)])}


def test_a_request_that_never_ran_leaves_nothing():
    tracker = Tracker(1, BLOCK)
    tracker.add("a", 5, lambda: 0)
    assert tracker.end("a") is None
    assert tracker.end("unknown") is None
    assert not tracker.step([], ["gone"], {}.__getitem__)
