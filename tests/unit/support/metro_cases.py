"""Steps and placements for the tests of METRO, and what the optimum is held against."""

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from eldr.engine.balance.packing import activation_weights, spread
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
