"""What a step starts on a GPU: kernels of ours and collectives, counted in the form that GPUs run."""

import operator
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from eldr.engine import worker as worker_half
from eldr.engine.balance import choose_triton
from eldr.engine.balance.choice import Balance, Group, in_triton
from eldr.engine.capture import kernels_triton, union
from eldr.engine.capture.staging import Staging
from eldr.engine.capture.union import GroupUnion
from eldr.engine.counting import Counting
from tests.engine.fakes import maps_of
from tests.engine.halves import REMOTE
from tests.engine.stepping import Stepped

KERNELS = 3
"""Of an exchange; docs/benchmarks/studies.md: 25 to 55 us a layer."""
EXPERTS, REDUNDANT, RANKS, TOP_K = 16, 8, 2, 4
ON_GPU = in_triton()
SUM = "sum over the ranks"
SENT, REPORTED = "copy to the device", "copy to the host"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engine-plugin.md"


class Started(TorchDispatchMode):
    """Lists what a block starts: Triton's kernels, sums over ranks, and torch's operations that are more than views or room."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        kernel = type(choose_triton._decide)
        run = kernel.run

        def started(kernel, *arguments, **named):
            self.seen.append(kernel.fn.__name__)
            with _disable_current_modes():  # what the interpreter does in place of a GPU
                return run(kernel, *arguments, **named)

        monkeypatch.setattr(kernel, "run", started)

    def add(self, said):
        """Sum over ranks that all say the same."""
        self.seen.append(SUM)
        with _disable_current_modes():
            return said * RANKS

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        makes_room = operation.overloadpacket in {torch.ops.aten.empty, torch.ops.aten.empty_like}
        if not (operation.is_view or makes_room):
            self.seen.append(str(operation))
        return operation(*arguments, **(named or {}))


@pytest.fixture
def started(monkeypatch):
    return Started(monkeypatch)


def layer(started):
    """Return a layer whose maps were read, and which has decided before, as at the start of an engine."""
    maps = maps_of([*range(EXPERTS), *range(REDUNDANT)])
    per_rank = (EXPERTS + REDUNDANT) // RANKS
    group = Group(RANKS, per_rank, started.add, lambda said: [said])
    balance = Balance([("layer.0", maps)], group, ON_GPU, TOP_K)
    balance.try_out()
    started.seen.clear()
    return balance


@pytest.mark.parametrize("tokens", [1, 3, 80])
def test_an_exchange_is_one_collective_and_at_most_three_kernels(started, tokens):
    balance = layer(started)
    ids = torch.randint(-1, EXPERTS + REDUNDANT, (tokens, TOP_K), generator=torch.Generator().manual_seed(1))
    with started:
        chosen = balance.exchange(0, ids, RANKS * tokens)
    assert (chosen >= 0).eq(ids >= 0).all()
    assert started.seen == ["_flag_experts", SUM, "_decide", "_remap"]
    assert len(started.seen) - 1 <= KERNELS


def test_the_union_of_a_step_is_one_collective_and_two_kernels_whatever_the_layers(started, monkeypatch):
    monkeypatch.setattr(union, "kernels_for", lambda _: kernels_triton)
    buffer = torch.randint(0, EXPERTS, (9, 12, TOP_K), dtype=torch.int32)
    one = GroupUnion(buffer, range(12), EXPERTS, started.add, Counting("a step"), rank=0, ranks=RANKS)
    one.begin(3)
    with started:
        one.form(9)
    assert started.seen == ["_flag_experts", SUM, "_sum_up_step"]
    assert one.report[:-1].tolist() == [len(buffer[:, at].unique()) for at in range(12)]


@pytest.fixture
def steps(started, monkeypatch):
    """Return a function that starts an engine whose kernels are those of GPUs: the engine, and what a step starts."""
    for module in (worker_half, union):
        monkeypatch.setattr(module, "kernels_for", lambda _: kernels_triton)
    send = Staging.send

    def counted(staging, values):
        started.seen.append(SENT)
        with _disable_current_modes():
            return send(staging, values)

    def copied(report):
        """Count what a report of an accelerator copies; the copies themselves are tested in test_staging."""
        tensors = [*report._counts.values(), *report._figures.values()]
        started.seen.extend(REPORTED for tensor in tensors if tensor is not None)

    monkeypatch.setattr(Staging, "send", counted)

    def make(role, **form):
        engine = Stepped(monkeypatch, role, **form)

        def run(*tokens, layers=None):
            started.seen.clear()
            report = engine.run(started, *tokens, layers=layers or nullcontext())
            if report is not None:
                copied(report)
            assert not engine.worker._counting.stopped
            return list(started.seen)

        return engine, run

    return make


def costs(step):
    """Return what docs/reference/engine-plugin.md says that a step starts: kernels, and copies each way."""
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {step} |"))
    return tuple(int(cell) for cell in line.split("|")[2:5])


def counted(seen):
    copies = seen.count(SENT), seen.count(REPORTED)
    return (len(seen) - sum(copies) - seen.count(SUM), *copies)


@pytest.mark.parametrize(
    ("role", "kernels"), [("prefill", ["_count_blocks", "_count_requests"]), ("decode", ["_count_requests"])]
)
def test_what_counts_is_compiled_before_the_first_step(monkeypatch, started, role, kernels):
    monkeypatch.setattr(worker_half, "kernels_for", lambda _: kernels_triton)
    worker = Stepped(monkeypatch, role).worker
    assert started.seen == kernels
    tables = [worker._answers.counts, worker._answers.positions]
    tables += [worker._prompts] if role == "prefill" else []
    assert all(int(table.amax()) <= 0 for table in tables), "and counts nothing"


def test_what_a_step_of_a_decode_engine_starts_is_what_the_page_says(steps):
    engine, run = steps("decode")
    asked = engine.add("a", 4, [1, 2], kv={"do_remote_prefill": True})
    engine.add("b", 4, [4, 5])
    joins = run(("a", 3, 1), ("b", 0, 4))
    begins = run(("a", 4, 1), ("b", 4, 1))
    usual = run(("a", 5, 1), ("b", 5, 1))
    engine.end(asked, 3)
    ends = run(("b", 6, 1))
    assert counted(usual) == counted(joins) == costs("decode, most steps"), usual
    assert counted(begins) == costs("decode, a request begins a KV block"), begins
    assert counted(ends) == costs("decode, a request has ended"), ends


def test_what_a_step_of_a_prefill_engine_starts_is_what_the_page_says(steps):
    engine, run = steps("prefill")
    engine.add("a", 10, [7, 3, 5], kv=REMOTE)
    part, last = run(("a", 0, 6)), run(("a", 6, 4))
    assert counted(part) == costs("prefill, a chunk that ends no prompt"), part
    assert counted(last) == costs("prefill, a chunk that ends a prompt"), last


def usual_step(engine, run):
    """Return what a step starts in which nobody comes or goes, and no block is begun."""
    engine.add("a", 4, [1, 2], kv={"do_remote_prefill": True})
    for at in (3, 4):
        run(("a", at, 1))
    return run(("a", 5, 1))


def test_what_dense_layers_and_ranks_add_is_what_the_page_says(steps, started):
    plain = counted(usual_step(*steps("decode")))
    dense = counted(usual_step(*steps("decode", dense=1)))
    ranks = usual_step(*steps("decode", add=started.add))
    assert plain == costs("decode, most steps")
    assert tuple(map(operator.sub, dense, plain)) == costs(
        "any, in a model whose first layers have no experts: in addition"
    )
    assert tuple(map(operator.sub, counted(ranks), plain)) == costs(
        "decode, ranks with requests of their own: in addition"
    ), ranks
    assert ranks.count(SUM) == 1


def test_what_is_captured_of_a_layer_is_what_the_page_says(steps, started):
    """Of the two layers the last one has a kernel that routes inside itself."""
    engine, run = steps("decode")
    usual = usual_step(engine, run)
    every = Counter(run(("a", 6, 1), layers=started)) - Counter(usual)
    assert every == {"aten.copy_.default": 2, "aten.sort.stable": 1}
    assert (
        "into a buffer, also inside a graph: one kernel. A kernel that routes inside itself costs a sort more"
        in (PAGE.read_text().replace("\n", " "))
    )
