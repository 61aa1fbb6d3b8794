"""The choice of replicas over a group of ranks: what it changes, what it must not, and that ranks which differ end."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from eldr.engine.balance import choice
from eldr.engine.balance.choice import ON_HOST, Balance, Group
from eldr.engine.balance.choose_host import replicas_of
from eldr.engine.errors import RankAloneError, RanksDisagreeError, UnsupportedEngineError
from eldr.engine.figures import ALL, ALL_VLLM, FULLEST, FULLEST_VLLM
from tests.engine.fakes import Ranks, maps_of, on_all

EXPERTS, REDUNDANT, RANKS, TOP_K = 16, 8, 2, 4
PHYSICAL = EXPERTS + REDUNDANT


def arranged(seed):
    """Return an arrangement of all experts and some replicas, other than the first one."""
    generator = torch.Generator().manual_seed(seed)
    extra = torch.randint(0, EXPERTS, (REDUNDANT,), generator=generator)
    order = torch.randperm(PHYSICAL, generator=generator)
    return torch.cat((torch.arange(EXPERTS), extra))[order].tolist()


FIRST = [*range(EXPERTS), *range(REDUNDANT)]


def move(maps, arrangement):
    """Change maps as vLLM does: into the same tensors."""
    maps.logical_to_physical_map.copy_(maps_of(arrangement).logical_to_physical_map)
    maps.logical_replica_count.copy_(maps_of(arrangement).logical_replica_count)


def balances(*layers, n=RANKS):
    """Return the choice of each rank, or what it raises; a layer is the maps that each rank has of it."""
    group = Ranks(n)

    def make(rank, _):
        named = [(f"layer.{number}", maps[rank]) for number, maps in enumerate(layers)]
        ranks = Group(n, PHYSICAL // n, group.add(rank), partial(group.say, rank))
        return Balance(named, ranks, ON_HOST, TOP_K)

    return on_all(range(n), make)


def follow(_, balance):
    balance.follow()


def routed(seed, tokens):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(tokens, EXPERTS, generator=generator).topk(TOP_K).indices


def as_vllm_maps(maps, ids):
    """Return the replicas that vLLM's hash of the token index takes."""
    choice = ((torch.arange(len(ids)) * 2654435769) & 0xFFFFFFFF)[:, None] % maps.logical_replica_count[ids]
    return maps.logical_to_physical_map[ids, choice].to(torch.int32)


def logical_of(arrangement, ids):
    table = torch.tensor([*arrangement, -1])
    return table[ids.long()]


def fullest_and_all(ids, n=RANKS):
    places = {int(place) for place in ids.reshape(-1) if place >= 0}
    loads = [sum(place // (PHYSICAL // n) == rank for place in places) for rank in range(n)]
    return max(loads), sum(loads)


def optimum(arrangement, active, n=RANKS):
    holders = [{p // (PHYSICAL // n) for p, e in enumerate(arrangement) if e == expert} for expert in active]
    return min(max(choice.count(rank) for rank in range(n)) for choice in itertools.product(*holders))


@pytest.mark.parametrize("seed", range(12))
def test_tokens_keep_their_experts_and_the_fullest_rank_has_as_few_as_can_be(seed):
    arrangement = arranged(seed)
    maps = maps_of(arrangement)
    mine = [routed(2 * seed + rank, 1 + seed % 3) for rank in range(RANKS)]
    stock = [as_vllm_maps(maps, ids) for ids in mine]
    found = balances([maps] * RANKS)
    chosen = on_all(found, lambda rank, balance: balance.exchange(0, stock[rank], 8))
    for rank in range(RANKS):
        assert chosen[rank].dtype == stock[rank].dtype
        assert torch.equal(logical_of(arrangement, chosen[rank]), mine[rank])
    both, active = torch.cat(chosen), set(torch.cat(mine).reshape(-1).tolist())
    fullest, everywhere = fullest_and_all(both)
    assert everywhere == len(active), "one replica of every expert"
    assert fullest == optimum(arrangement, sorted(active))
    for balance in found:
        figures = balance.figures[0].tolist()
        assert (figures[FULLEST], figures[ALL]) == (fullest, everywhere)
        assert (figures[FULLEST_VLLM], figures[ALL_VLLM]) == fullest_and_all(torch.cat(stock))


def test_padding_stays_and_counts_nowhere():
    maps = maps_of(FIRST)
    ids = torch.full((3, TOP_K), -1, dtype=torch.int64)
    ids[0] = torch.tensor([0, 1, 2, 16])  # expert 0 in both of its places
    chosen = on_all(balances([maps] * RANKS), lambda rank, balance: balance.exchange(0, ids, 3))[0]
    assert chosen[1:].eq(-1).all()
    assert logical_of(FIRST, chosen[0]).tolist() == [0, 1, 2, 0]
    assert chosen[0, 0] == chosen[0, 3]


def test_a_token_that_one_rank_routes_otherwise_changes_nothing_for_others():
    """Ranks hold the same tokens, and one breaks a tie differently: both still choose alike."""
    maps = maps_of(arranged(3))
    ids = routed(5, 4)
    other = ids.clone()
    other[0, 0] = next(e for e in range(EXPERTS) if e not in ids[0].tolist())
    stock = [as_vllm_maps(maps, ids), as_vllm_maps(maps, other)]
    chosen = on_all(balances([maps] * RANKS), lambda rank, balance: balance.exchange(0, stock[rank], 4))
    assert torch.equal(chosen[0][1:], chosen[1][1:])


def test_rearrangements_are_followed():
    maps = [maps_of(FIRST) for _ in range(RANKS)]
    found = balances(maps)
    for seed in range(4):
        arrangement = arranged(seed)
        for one in maps:
            move(one, arrangement)
        assert on_all(found, follow) == [None] * RANKS
        ids = routed(seed, 3)
        stock = as_vllm_maps(maps[0], ids)
        chosen = on_all(found, lambda _, balance, stock=stock: balance.exchange(0, stock, 3))
        assert torch.equal(logical_of(arrangement, chosen[0]), ids)
        assert torch.equal(chosen[0], chosen[1])


def test_many_tokens_per_expert_leave_vllms_choice_without_a_collective():
    maps = maps_of(FIRST)
    group = Group(2, PHYSICAL // 2, lambda _: 1 / 0, lambda said: [said])
    alone = Balance([("layer.0", maps)], group, ON_HOST, TOP_K)
    ids = as_vllm_maps(maps, routed(1, 2))
    assert alone.exchange(0, ids, 100 * EXPERTS // TOP_K) is ids
    assert not alone.figures.any()
    with pytest.raises(RankAloneError, match="ZeroDivisionError"):
        alone.exchange(0, ids, 100 * EXPERTS // TOP_K - 1)


@pytest.mark.parametrize("what", ["maps", "counts", "torn maps"])
def test_ranks_that_disagree_all_end(what):
    """Maps are torn whose count was changed and whose table was not."""
    others = {"maps": [FIRST[-1], *FIRST[1:-1], FIRST[0]], "counts": [*FIRST[:-1], 15]}
    maps = [maps_of(FIRST), maps_of(others.get(what, FIRST))]
    if what == "torn maps":
        maps[1].logical_replica_count[3] += 1
    for raised in balances(maps):
        assert isinstance(raised, RanksDisagreeError), raised
        assert "the engine ends" in str(raised)


@pytest.mark.parametrize("who", range(RANKS))
@pytest.mark.parametrize("layer", range(3))
def test_a_rearrangement_that_one_rank_reads_otherwise_ends_all_before_the_next_step(layer, who):
    maps = [[maps_of(FIRST) for _ in range(RANKS)] for _ in range(3)]
    found = balances(*maps)
    for rank in range(RANKS):
        move(maps[layer][rank], arranged(2 + (rank == who)))
    for raised in on_all(found, follow):
        assert isinstance(raised, RanksDisagreeError), raised


def test_maps_are_read_when_they_changed_and_only_then(monkeypatch):
    maps, read = maps_of(FIRST), []
    (found,) = balances([maps], n=1)
    monkeypatch.setattr(choice, "replicas_of", lambda *maps: read.append(1) or replicas_of(*maps))
    for _ in range(2):
        found.follow()
    assert read == []
    for tensor in (maps.logical_to_physical_map, maps.logical_replica_count):
        tensor.copy_(tensor.clone())
        for _ in range(2):
            found.follow()
    assert read == [1, 1]


def fails(*_):
    raise RuntimeError("out of memory")


def choices(found, stock, tokens=3):
    return on_all(found, lambda rank, balance: balance.exchange(0, stock, tokens))


def fail_at(monkeypatch, balance, *steps):
    """Let some kernels of a rank fail."""
    monkeypatch.setattr(balance, "_form", balance._form._replace(**dict.fromkeys(steps, fails)))


@pytest.mark.parametrize("step", ["decide", "remap"])
def test_a_rank_that_cannot_choose_ends_its_process(monkeypatch, step):
    maps = [maps_of(FIRST), maps_of(FIRST)]
    found = balances(maps)
    stock = as_vllm_maps(maps[0], routed(0, 3))
    fail_at(monkeypatch, found[1], step)
    chosen, alone = choices(found, stock)
    assert isinstance(chosen, torch.Tensor)
    assert isinstance(alone, RankAloneError)


class Poor(torch.Tensor):
    """Ids of a rank without memory for a copy of them."""

    def contiguous(self, *_):
        raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("what", ["ids", "flag", "sum"])
def test_a_rank_that_fails_before_the_others_have_its_word_ends_its_process(monkeypatch, what):
    maps = [maps_of(FIRST), maps_of(FIRST)]
    found = balances(maps)
    ids = as_vllm_maps(maps[0], routed(0, 3))
    if what == "ids":
        ids = ids.as_subclass(Poor)
    elif what == "flag":
        fail_at(monkeypatch, found[1], "flag")
    else:
        monkeypatch.setattr(found[1], "_group", replace(found[1]._group, add=fails))
    with pytest.raises(RankAloneError):  # the others would wait in the sum
        found[1].exchange(0, ids, 3)


def test_an_arrangement_with_an_empty_place_is_refused():
    maps = maps_of(FIRST)
    maps.logical_replica_count[3] = 0
    for raised in balances([maps] * RANKS):
        assert isinstance(raised, UnsupportedEngineError), raised
        assert "unset ELDR_BALANCE" in str(raised)
