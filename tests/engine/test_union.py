"""The experts of a step over ranks that have requests of their own."""

import copy
import threading
from types import SimpleNamespace

import pytest
import torch

from eldr.engine.capture import kernels, kernels_triton
from eldr.engine.capture.kernels import FAILED
from eldr.engine.capture.union import GroupUnion
from eldr.engine.counting import Counting
from tests.engine.fakes import Ranks, on_all

EXPERTS, LAYERS, TOP_K = 12, (3, 5, 8), 2


def unions(states, module):
    """Return a group's unions with their capture buffers; what lies in these behind a step's tokens must not count."""
    group, form, found = Ranks(len(states)), in_turn(module), []
    for rank, state in enumerate(states):
        buffer = torch.full((8, 1 + max(LAYERS), TOP_K), 11, dtype=torch.int32)
        one = GroupUnion(buffer, LAYERS, EXPERTS, group.add(rank), state, rank=rank, ranks=len(states))
        one._kernels = form
        found.append((buffer, one))
    return found


def route(buffer, one, ids):
    """Capture a step's ids, of shape (tokens, layers, top k)."""
    buffer[: len(ids), list(LAYERS)] = ids
    one.form(len(ids))


def in_turn(module):
    """Return the kernels of a module for ranks that are threads: Triton's interpreter takes one at a time."""
    lock = threading.Lock()

    def alone(kernel):
        def run(*arguments):
            with lock:
                return kernel(*arguments)

        return run

    names = ("flag_experts", "sum_up_step")
    return SimpleNamespace(**{name: alone(getattr(module, name)) for name in names})


@pytest.mark.parametrize("module", [kernels, kernels_triton])
def test_every_rank_sees_what_all_have_and_forgets_the_step_before(module):
    """A rank without requests is told by nobody that a step begins; the first that has some tells of the step."""
    found = unions([Counting("a step") for _ in range(3)], module)
    generator = torch.Generator().manual_seed(1)
    for step, busy in enumerate([(0, 2), (0, 1, 2), (1, 2), (2,), ()]):
        # a rank without requests runs a dummy token; padding is -1
        ids = [
            torch.randint(-1, EXPERTS - 1, (tokens, len(LAYERS), TOP_K), generator=generator).to(torch.int32)
            for tokens in (4, 1, 1 + step)
        ]

        def run(rank, pair, ids=ids, busy=busy):
            buffer, one = pair
            if rank in busy:
                one.begin(rank + 2)
                assert not one.report.any()
            route(buffer, one, ids[rank])
            one.end()
            return one.report.tolist()

        every = torch.cat(ids)
        wanted = [
            len({e for e in every[:, row].reshape(-1).tolist() if e >= 0}) for row in range(len(LAYERS))
        ]
        requests = sum(rank + 2 for rank in busy)
        assert on_all(found, run) == [[*wanted, requests if busy[:1] == (rank,) else 0] for rank in range(3)]


@pytest.mark.parametrize("module", [kernels, kernels_triton])
@pytest.mark.parametrize("where", ["before the sum", "after it", "elsewhere"])
def test_a_rank_that_fails_takes_part_and_all_know(monkeypatch, where, module):
    states = [Counting(f"rank {rank}") for rank in range(2)]
    found = unions(states, module)
    ids = torch.zeros(1, len(LAYERS), TOP_K, dtype=torch.int32)

    def run(rank, pair):
        buffer, one = pair
        one.begin(rank + 1)
        route(buffer, one, ids)
        one.end()
        return int(one.report[-1])

    assert on_all(found, run) == [3, 0]
    faults = {"before the sum": "flag_experts", "after it": "sum_up_step"}
    if where == "elsewhere":
        states[1].stop("out of memory")
    else:
        theirs = copy.copy(found[1][1]._kernels)
        setattr(theirs, faults[where], lambda *_: 1 / 0)
        monkeypatch.setattr(found[1][1], "_kernels", theirs)
    if where == "after it":
        assert on_all(found, run) == [3, 0], "the others know from the next step on"
    for _ in range(2):
        told = on_all(found, run)
        assert told[0] == FAILED
        monkeypatch.undo()  # once failed, it stays so
    assert told[1] == FAILED
    assert not states[0].stopped
    assert states[1].stopped
