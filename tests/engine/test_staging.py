"""What a step asks of the device: nothing that the host waits for."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from eldr.engine.capture.staging import SIZE, Staging
from eldr.engine.decode.scheduler import DecodeScheduler
from eldr.engine.decode.worker import DecodeWorker
from eldr.engine.prefill.scheduler import PrefillScheduler
from eldr.engine.prefill.worker import PrefillWorker
from tests.engine.fakes import LAYERS
from tests.engine.halves import GROUP, NO_WINDOWS, REMOTE, TOP_K, config, output, request, route, sent

aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense,  # item, tolist, bool, int
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_consecutive,
    aten.unique_dim,
    aten.bincount,
    aten.repeat_interleave,
    aten.lift_fresh,  # torch.tensor(list)
    aten.lift_fresh_copy,
}


class Waiting(AssertionError):
    """An operation for which the host waits."""


class Lists(TorchFunctionMode):
    """Ends at ``tolist``, which reads a CPU's memory without an operation."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        if function is torch.Tensor.tolist:
            raise Waiting("tolist: the host waits for it")
        return function(*arguments, **(named or {}))


class Watched(TorchDispatchMode):
    """Lists the operations of a block that are more than views, and ends at one that waits."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        packet, named = operation.overloadpacket, named or {}
        indices = arguments[1] if packet in {aten.index, aten.index_put, aten.index_put_} else []
        masks = any(index is not None and index.dtype == torch.bool for index in indices)
        moves = packet is aten._to_copy and named.get("device") is not None and not named.get("non_blocking")
        if packet in WAITS or masks or moves:
            raise Waiting(f"{operation}: the host waits for it")
        if not operation.is_view:
            self.seen.append(str(packet))
        return operation(*arguments, **named)


ONE = torch.ones(4, dtype=torch.int64)


@pytest.mark.parametrize(
    "waits",
    [
        ONE.tolist,
        lambda: int(ONE[0]),
        lambda: bool((ONE > 0).all()),
        ONE.nonzero,
        lambda: ONE[ONE > 0],
        lambda: ONE.clone().__setitem__(ONE > 0, 2),
        lambda: torch.tensor([1, 2]),
        ONE.unique,
        lambda: ONE.to("meta"),
    ],
)
def test_what_waits_is_seen(waits):
    with Lists(), Watched(), pytest.raises(Waiting):
        waits()


def step(half, worker, new=(), cached=(), blocks=None):
    """Run a step whose every token uses experts 0 and 1; return the report, and the operations of our part of it."""
    orders = sent(half.orders(output(new, cached, blocks)))
    route(new, cached, blocks)
    with Lists(), Watched() as watched:
        worker.begin(orders)
        report = worker.finish()
    return report, watched.seen


def test_no_step_of_a_decode_engine_waits(engine):
    half = DecodeScheduler(config(), GROUP, NO_WINDOWS, 16)
    worker = DecodeWorker(config(), GROUP, 40, reports=True)
    blocks = {"a": [1, 2], "b": [4, 5]}
    asked = request("a", 4, kv={"do_remote_prefill": True})
    half.add(asked)
    half.add(request("b", 4))
    kinds = [step(half, worker, new=[("a", 3, 1), ("b", 0, 4)], blocks=blocks)]
    kinds += [step(half, worker, cached=[("a", at, 1), ("b", at, 1)], blocks=blocks) for at in range(4, 8)]
    asked.num_output_tokens = 5
    half.end(asked)
    kinds.append(step(half, worker, cached=[("b", 8, 1)], blocks={"b": [4, 5, 6]}))
    report, _ = kinds[-1]
    assert report.counts["a"].sum() == 4 * LAYERS * TOP_K
    usual = [seen for _, seen in kinds[2:-1]]  # nobody comes or goes, no block is begun
    assert len(set(map(tuple, usual))) == 1
    assert len(usual[0]) <= 60, usual[0]  # in torch; on a GPU one kernel, a fill and a sum


def test_no_step_of_a_prefill_engine_waits(engine):
    half, worker = (
        PrefillScheduler(config(), GROUP, GROUP.block_size),
        PrefillWorker(config(), GROUP, 40, reports=True),
    )
    half.add(request("a", 10, kv=REMOTE))
    step(half, worker, new=[("a", 0, 6)], blocks={"a": [7, 3, 5]})
    report, _ = step(half, worker, cached=[("a", 6, 4)], blocks={"a": [7, 3, 5]})
    ((request_id, _number), counts) = next(iter(report.counts.items()))
    assert (request_id, counts.sum()) == ("a", 10 * LAYERS * TOP_K)


@pytest.mark.parametrize("n", [0, 1, SIZE, SIZE + 1])
def test_numbers_arrive_and_stay(n):
    staging = Staging(torch.device("cpu"))
    first = staging.send(range(n))
    staging.send([-1] * n)
    assert first.tolist() == list(range(n))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: what its driver itself calls a wait")
def test_numbers_are_sent_to_a_gpu_without_a_wait():
    staging = Staging(torch.device("cuda"))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sent_ones = [staging.send(range(at, at + 100)) for at in range(10)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [one[0].item() for one in sent_ones] == list(range(10))
