"""Expected unions: exact under joins and leaves, and nothing that is in flight is forgotten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from eldr.core.union import Shape, Unions, spread

SHAPE = Shape(4, 8, 2, (1, 3))
ENGINES = ("d0", "d1", "d2")


def prompt(seed, tokens=40, shape=SHAPE):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet([0.3] * shape.n_experts, size=shape.n_layers)
    return (
        np.stack([rng.multinomial(tokens * shape.top_k, row) for row in weights])
        .clip(0, tokens)
        .astype(np.uint16)
    )


def expected(requests, strangers=0, mean=None):
    """Active experts, mean over the layers, from scratch."""
    survival = np.ones(SHAPE.cells)
    for request in requests:
        survival *= 1.0 - request.inclusion.astype(float)
    if strangers:
        survival *= (1.0 - np.minimum(mean.astype(float), 0.98)) ** strangers
    return (SHAPE.cells - survival.sum()) / len(SHAPE.layers)


class Pool(RuleBasedStateMachine):
    """Requests come and go on three engines, others are placed by somebody else."""

    stays = Bundle("stays")

    def __init__(self):
        super().__init__()
        self.unions = Unions(SHAPE)
        self.held = {engine: [] for engine in ENGINES}
        self.strangers = dict.fromkeys(ENGINES, 0)
        self.told = dict.fromkeys(ENGINES, ())

    @rule(target=stays, engine=st.sampled_from(ENGINES), seed=st.integers(0, 50), n=st.integers(1, 3))
    def joins(self, engine, seed, n):
        request = self.unions.request(prompt(seed), 40)
        members = [request] * n
        self.held[engine].append(members)
        return engine, members, self.unions.join(engine, request, n)

    @rule(stay=consumes(stays))
    def leaves(self, stay):
        engine, members, place = stay
        place.leave()
        place.leave()
        self.held[engine] = [known for known in self.held[engine] if known is not members]

    @rule(engine=st.sampled_from(ENGINES), n=st.integers(0, 4))
    def somebody_else_places(self, engine, n):
        self.strangers[engine] = n

    @rule(engine=st.sampled_from(ENGINES), seeds=st.lists(st.integers(0, 50), max_size=3))
    def another_router_tells(self, engine, seeds):
        requests = tuple(self.unions.request(prompt(seed), 40) for seed in seeds)
        self.told = dict.fromkeys(ENGINES, ())
        self.told[engine] = requests
        logs = sum((request.logs for request in requests), np.zeros(SHAPE.cells)).astype(np.float32)
        self.unions.merge("r1", {engine: (len(requests), logs)} if requests else {})

    @rule()
    def idle_workers_are_forgotten(self):
        self.unions.retain(())

    @invariant()
    def agrees_with_a_recomputation(self):
        totals, wanted = [], []
        for engine in ENGINES:
            known = [request for members in self.held[engine] for request in members] + list(
                self.told[engine]
            )
            totals.append(len(known) + self.strangers[engine])
            wanted.append(expected(known, self.strangers[engine], self.unions.mean))
        assert self.unions.outlook(None, ENGINES, totals).active == pytest.approx(wanted, abs=0.03)


TestPool = pytest.mark.slow(Pool.TestCase)
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.slow
def test_nothing_is_left_after_many_requests_came_and_went():
    unions, rng = Unions(SHAPE), np.random.default_rng(0)
    stays = []
    for step in range(5000):
        stays.append(
            unions.join("d0", unions.request(prompt(step % 97, tokens=1 + step % 50), 1 + step % 50))
        )
        if len(stays) > 60:
            stays.pop(int(rng.integers(60))).leave()
    for stay in stays:
        stay.leave()
    assert unions.outlook(None, ["d0"], [0]).active == [0.0]


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 3))
def test_growth_is_what_the_union_grows_by(there, comes, n):
    unions = Unions(SHAPE)
    unions.join("d0", unions.request(prompt(there), 40))
    request = unions.request(prompt(comes), 40)
    before = unions.outlook(request, ["d1", "d0"], [0, 1], n)
    unions.join("d0", request, n)
    after = unions.outlook(None, ["d0"], [1 + n])
    assert after.active[0] - before.active[1] == pytest.approx(before.growth[1], abs=0.01)
    assert before.growth[0] >= before.growth[1] - 1e-5, "an idle engine grows most"


def test_requests_without_a_signature_count_as_the_mean():
    unions = Unions(SHAPE)
    assert unions.outlook(None, ["d0"], [0]).growth == pytest.approx([2.0]), (
        "nothing is known: top-k of all alike"
    )
    for seed in range(200):
        unions.join("d0", unions.request(prompt(seed % 3), 40)).leave()
    shares = np.mean([prompt(seed)[[1, 3]].reshape(-1) / 40 for seed in range(3)], axis=0)
    assert unions.mean == pytest.approx(shares, abs=0.02)
    assert unions.outlook(None, ["d0"], [5]).active == pytest.approx([expected([], 5, unions.mean)], abs=1e-3)


def test_the_mean_follows_traffic_that_changes():
    unions = Unions(SHAPE)
    old, new = (unions.request(prompt(seed), 40) for seed in (1, 2))
    for request in (*[old] * 3000, *[new] * 3000):
        unions.join("d0", request).leave()
    assert unions.mean == pytest.approx(0.05 * old.share + 0.95 * new.share, abs=0.01)


def test_few_tokens_say_little():
    unions = Unions(SHAPE)
    one, many = np.zeros((4, 8), np.uint16), np.zeros((4, 8), np.uint16)
    one[:, :2], many[:, :2] = 1, 1000
    assert unions.request(one, 1).inclusion[0] == pytest.approx(1 / 21 + 20 / 21 * 0.25, abs=1e-3)
    assert unions.request(many, 1000).inclusion[0] == pytest.approx((980 + 20 * 0.25) / 1020), "no certainty"


def test_only_what_changed_is_told():
    unions = Unions(SHAPE)
    stay = unions.join("d0", unions.request(prompt(1), 40))
    before = unions.version
    assert unions.table(before) == {}
    unions.join("d1", unions.request(prompt(2), 40))
    assert set(unions.table(before)) == {"d1"}
    stay.leave()
    assert set(unions.table(before)) == {"d0", "d1"}
    unions.retain(["d1"])
    assert set(unions.table()) == {"d1"}


def test_a_pool_without_workers_has_no_unions():
    unions = Unions(SHAPE)
    assert unions.outlook(unions.request(prompt(1), 40), [], []) == ([], [])


@pytest.mark.parametrize("layers", [(2,), (0, 1), (0, 3), (1, 2, 3), (0, 1, 3)])
def test_the_layers_looked_at_are_those_asked_for(layers):
    counts = prompt(1)
    request = Unions(SHAPE._replace(layers=layers)).request(counts, 40)
    assert request.share == pytest.approx(np.minimum(counts[list(layers)].reshape(-1) / 40, 0.98))


def test_bad_counts_are_refused():
    unions = Unions(SHAPE)
    with pytest.raises(ValueError, match=r"counts: expected 4 layers x 8 experts, got shape \(2, 8\)"):
        unions.request(np.zeros((2, 8), np.uint16), 5)
    with pytest.raises(ValueError, match="tokens: expected at least 1, got 0"):
        unions.request(np.zeros((4, 8), np.uint16), 0)


@given(st.lists(st.integers(0, 100), unique=True, min_size=1, max_size=60).map(sorted), st.integers(1, 12))
def test_layers_are_spread_evenly(layers, most):
    chosen = spread(layers, most)
    assert len(chosen) == min(most, len(layers))
    assert list(chosen) == sorted(set(chosen))
    assert set(chosen) <= set(layers)
    gaps = np.diff([-0.5 * len(layers) / len(chosen), *map(layers.index, chosen)])
    assert gaps.max() - gaps.min() <= 2 or len(layers) <= most
