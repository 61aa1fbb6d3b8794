"""EPLB places experts by activation: through vLLM's own entry points, and never worse than without replicas."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.distributed.eplb import eplb_state
from vllm.distributed.eplb.policy import EPLB_POLICIES

from eldr.engine.balance import placement
from tests.support.metro import Placement, exact

LAYERS, EXPERTS, REDUNDANT, RANKS, WINDOW = 3, 32, 8, 4, 1000
"""The window is vLLM's own by default, steps."""


@pytest.fixture(autouse=True)
def policies():
    before = dict(EPLB_POLICIES)
    yield EPLB_POLICIES
    EPLB_POLICIES.clear()
    EPLB_POLICIES.update(before)


def config(*, tensor=1, sequence=False):
    parallel = SimpleNamespace(
        tensor_parallel_size=tensor,
        use_sequence_parallel_moe=sequence,
        eplb_config=SimpleNamespace(window_size=WINDOW),
    )
    return SimpleNamespace(parallel_config=parallel)


def test_it_stands_where_vllm_looks_and_only_once(policies):
    for _ in range(2):
        placement.claim(config())
        assert eplb_state.EPLB_POLICIES is policies
        assert policies["default"].steps == WINDOW
    assert issubclass(policies["default"], placement.ActivationPolicy)


@pytest.mark.parametrize(("tensor", "sequence", "times"), [(1, False, 1), (4, False, 4), (4, True, 1)])
def test_tokens_that_several_ranks_count_are_one(policies, tensor, sequence, times):
    placement.claim(config(tensor=tensor, sequence=sequence))
    assert policies["default"].steps == WINDOW * times


def test_a_saturated_step_waits_no_longer_than_without_replicas(policies):
    placement.claim(config())
    rng = np.random.default_rng(1)
    tokens = torch.from_numpy(rng.pareto(0.8, (LAYERS, EXPERTS)) * 500).to(torch.int64)
    before = torch.arange(EXPERTS + REDUNDANT).remainder(EXPERTS).expand(LAYERS, -1)
    found = policies["default"].rebalance_experts(tokens, EXPERTS + REDUNDANT, 1, 1, RANKS, before)
    assert (found.dtype, tuple(found.shape)) == (torch.int64, (LAYERS, EXPERTS + REDUNDANT))
    for layer in found.numpy():
        assert set(layer) == set(range(EXPERTS))
        choice = exact(np.ones(EXPERTS, bool), Placement(layer, EXPERTS, RANKS))
        assert max(choice.load) == EXPERTS // RANKS


def test_a_window_without_tokens_is_placed_too(policies):
    """Profiling, before any request."""
    placement.claim(config())
    found = policies["default"].rebalance_experts(
        torch.zeros(LAYERS, EXPERTS, dtype=torch.int64), EXPERTS + REDUNDANT, 4, 2, RANKS
    )
    assert all(set(layer.tolist()) == set(range(EXPERTS)) for layer in found)
