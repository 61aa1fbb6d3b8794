"""Steps and placements for the tests of METRO, and what the optimum is held against."""

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from eldr.engine.balance.packing import activation_weights, spread
from eldr.sim import traces
from tests.support.metro import Placement
from tests.support.metro.baselines import active_set, pack

GEOMETRIES = [(128, 8, 8), (256, 8, 8), (256, 8, 16), (128, 8, 4), (64, 4, 4)]
"""Experts, experts per token, ranks."""


def slots(n_experts, ratio, ranks):
    return -(-round(n_experts * ratio) // ranks) * ranks


def tokens(rng, n_experts, top_k, batch):
    """Top-k of Zipf-like popularity with noise per token."""
    logit = -0.8 * np.log(np.arange(1, n_experts + 1))
    return np.argsort(-(logit + rng.gumbel(size=(batch, n_experts))), axis=1)[:, :top_k]


def random_case(seed):
    """A step on a placement that EPLB, we or chance made."""
    rng = np.random.default_rng(seed)
    n_experts, top_k, ranks = GEOMETRIES[seed % len(GEOMETRIES)]
    n_physical = slots(n_experts, rng.choice([1.125, 1.25, 1.5]), ranks)
    sums = np.bincount(tokens(rng, n_experts, top_k, 100).ravel(), minlength=n_experts)
    where = (
        pack(sums, n_physical, ranks),
        spread(activation_weights(sums, 10), n_physical, ranks),
        rng.permutation(np.r_[np.arange(n_experts), rng.integers(0, n_experts, n_physical - n_experts)]),
    )[seed % 3]
    batch = int(rng.choice([4, 16, 64, 256]))
    return active_set(tokens(rng, n_experts, top_k, batch), n_experts), Placement(where, n_experts, ranks)


class Captured:
    """Steps of the captured activations."""

    def __init__(self, seed):
        self.traces = traces.load()
        self.rng = np.random.default_rng(seed)

    def step(self, layer, batch):
        """Return the experts of a random batch's tokens, int of shape (batch, top_k)."""
        chosen = self.traces.decode_experts
        record, token = (self.rng.integers(0, n, batch) for n in chosen.shape[:2])
        return chosen[record, token, layer].astype(int)

    def sums(self, layer):
        """Return the tokens of each expert over all captured steps."""
        return np.bincount(
            self.traces.decode_experts[:, :, layer].ravel(), minlength=self.traces.n_experts
        ).astype(float)


def captured_cases(n, seed):
    captured = Captured(seed)
    n_experts = captured.traces.n_experts
    steps = captured.traces.decode_experts[:, :, 0, 0].size
    places = {}
    for i in range(n):
        layer, ranks = i % captured.traces.n_layers, (4, 8)[i // 4 % 2]
        ratio, kind, batch = (1.125, 1.25, 1.5)[i % 3], i // 8 % 2, (8, 32, 128)[i // 16 % 3]
        key = layer, ranks, ratio, kind, batch
        if key not in places:
            sums, n_physical = captured.sums(layer), slots(n_experts, ratio, ranks)
            where = (
                spread(activation_weights(sums, steps // batch), n_physical, ranks)
                if kind
                else pack(sums, n_physical, ranks)
            )
            places[key] = Placement(where, n_experts, ranks)
        yield active_set(captured.step(layer, batch), n_experts), places[key]


def fits(active, placement, limit):
    """Say whether a choice exists that gives no rank more than ``limit`` experts: the maximum flow, as the paper has it."""
    experts = np.flatnonzero(active)
    n, ranks = len(experts), placement.ranks
    rows, columns = np.nonzero(placement.held[experts])
    source, sink = n + ranks, n + ranks + 1
    tail = np.r_[np.full(n, source), rows, n + np.arange(ranks)]
    head = np.r_[np.arange(n), n + columns, np.full(ranks, sink)]
    capacity = np.r_[np.ones(n + len(rows), np.int32), np.full(ranks, limit, np.int32)]
    graph = csr_matrix((capacity, (tail, head)), shape=(n + ranks + 2, n + ranks + 2))
    return bool(maximum_flow(graph, source, sink).flow_value == n)
