"""Maps of experts are compared in every step, also where nothing is chosen among replicas."""

from types import SimpleNamespace

import pytest
import torch

from eldr.engine.balance.choice import Group
from eldr.engine.balance.watch import MapsWatch
from eldr.engine.errors import RanksDisagreeError

LAYERS, EXPERTS, RANKS = 3, 8, 2
IDS = torch.tensor([[0, 5], [7, -1]])


def maps():
    return [
        SimpleNamespace(
            logical_to_physical_map=torch.arange(EXPERTS)[:, None].repeat(1, 4),
            logical_replica_count=torch.ones(EXPERTS, dtype=torch.int64),
        )
        for _ in range(LAYERS)
    ]


def pair():
    """Return the layers of two ranks, and the watch of the first: what the other says is added to its own."""
    mine, theirs, said = maps(), maps(), []
    other = MapsWatch(theirs, Group(RANKS, EXPERTS // RANKS, lambda one: said.append(one) or 2 * one), "v1")

    def add(one):
        other.exchange(IDS, 2)
        return one + said.pop()

    return mine, theirs, MapsWatch(mine, Group(RANKS, EXPERTS // RANKS, add), "v1")


def swap(layer):
    """Move two experts, as a rearrangement does: into the same tensor."""
    layer.logical_to_physical_map[:2] = torch.tensor([1, 0])[:, None]


def test_ranks_that_move_together_go_on():
    mine, theirs, watch = pair()
    assert watch.exchange(IDS, 2) is IDS
    for layers in (mine, theirs):
        swap(layers[-1])
    assert watch.exchange(IDS, 2) is IDS
    assert not watch.trouble


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_misses_a_move_of_any_layer_ends_the_engine(layer, who):
    *ranks, watch = pair()
    watch.exchange(IDS, 2)
    swap(ranks[who][layer])
    with pytest.raises(RanksDisagreeError, match="maps of experts differ"):
        watch.exchange(IDS, 2)
    assert watch.trouble


def test_versions_are_part_of_what_is_compared():
    alone = Group(1, EXPERTS, lambda one: one)
    one, other = (MapsWatch(maps(), alone, version) for version in ("v1", "v2"))
    for watch in (one, other):
        watch.exchange(IDS, 2)
    assert not torch.equal(one._tail.said, other._tail.said)
