"""What a step asks of the device: nothing that the host waits for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from eldr.engine.capture.staging import SIZE, Staging
from eldr.engine.messages import StepReport
from tests.engine.fakes import LAYERS
from tests.engine.halves import REMOTE, TOP_K, sent
from tests.engine.stepping import Stepped

aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense,  # item, tolist, bool, int
    aten.is_nonzero,
    aten.equal,
    aten.allclose,
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
    """Ends at what reads a tensor on the host, or copies without saying that nobody waits: on a CPU, neither is an operation."""

    READS = (
        torch.Tensor.tolist,
        torch.Tensor.item,
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.cpu,
        torch.Tensor.type,  # by the name of a device's type
        torch.Tensor.__repr__,
    )

    def __init__(self, pinned):
        super().__init__()
        self._pinned = pinned

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        if function in self.READS and arguments[0].untyped_storage().data_ptr() not in self._pinned:
            raise Waiting(f"{function.__name__}: the host waits for it")
        if function is torch.Tensor.copy_ and not (named.get("non_blocking") or len(arguments) > 2):
            raise Waiting("copy_: the host waits for it, if one of the two is the host's")
        if function is torch.Tensor.to and not named.get("non_blocking"):
            wanted = (*arguments[1:], *named.values())
            if any(isinstance(one, str | torch.device | torch.Tensor) for one in wanted):
                raise Waiting(f"to{wanted}: the host waits for it")
        return function(*arguments, **named)


class Operations(TorchDispatchMode):
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


class Watch:
    """Both, and what waits for the device by name; a context that may be entered again. Memory of :class:`Staging` is the host's."""

    def __init__(self, monkeypatch):
        self._pinned, self._inside, self.operations = set(), False, Operations()
        self._lists = Lists(self._pinned)
        room = Staging._host

        def host(staging, size):
            found = room(staging, size)
            self._pinned.add(found.untyped_storage().data_ptr())
            return found

        monkeypatch.setattr(Staging, "_host", host)
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            monkeypatch.setattr(owner, "synchronize", self._wait)

    def _wait(self, *_):
        if self._inside:
            raise Waiting("synchronize: the host waits for it")

    def __enter__(self):
        self._lists.__enter__()
        self.operations.__enter__()
        self._inside = True

    def __exit__(self, *error):
        self._inside = False
        self.operations.__exit__(*error)
        self._lists.__exit__(*error)


@pytest.fixture
def watch(monkeypatch):
    return Watch(monkeypatch)


ONE = torch.ones(4, dtype=torch.int64)


@pytest.mark.parametrize(
    "waits",
    [
        ONE.tolist,
        lambda: int(ONE[0]),
        lambda: ONE[ONE > 0],
        lambda: torch.tensor([1, 2]),
        lambda: np.asarray(ONE),
        lambda: ONE.clone().copy_(ONE),
        lambda: ONE.to("cpu"),
        lambda: torch.cuda.synchronize(),  # noqa: PLW0108 - the one that is patched by then
    ],
)
def test_what_waits_is_seen(watch, waits):
    with watch, pytest.raises(Waiting):
        waits()


def test_what_does_not_wait_passes(watch):
    with watch:
        Staging(torch.device("cpu")).send([1, 2])
        ONE.to(torch.int32)
        ONE.to("cpu", non_blocking=True)
        ONE.clone().copy_(ONE, non_blocking=True)


FORMS = {
    "experts in every layer": {},
    "a dense layer first": {"dense": 1},
    "ranks with requests of their own": {"add": lambda said: said},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_step_of_a_decode_engine_waits(monkeypatch, watch, form):
    engine, seen = Stepped(monkeypatch, "decode", **form), watch.operations.seen

    def step(*tokens):
        seen.clear()
        return engine.run(watch, *tokens), tuple(seen)

    asked = engine.add("a", 4, [1, 2], kv={"do_remote_prefill": True})
    engine.add("b", 4, [4, 5, 6])
    kinds = [step(("a", 3, 1), ("b", 0, 4))]
    kinds += [step(("a", at, 1), ("b", at, 1)) for at in range(4, 8)]
    engine.end(asked, 5)
    kinds.append(step(("b", 8, 1)))
    assert not engine.worker._counting.stopped
    assert kinds[-1][0].counts()["a"].sum() == 4 * LAYERS * TOP_K
    assert [report.figures()["union"].tolist() for report, _ in kinds] == [[TOP_K] * LAYERS] * len(kinds)
    usual = [seen for _, seen in kinds[2:-1]]  # nobody comes or goes, no block is begun
    assert len(set(usual)) == 1
    assert len(usual[0]) <= 100, usual[0]  # in torch; what a GPU runs is counted in test_launches


@pytest.mark.parametrize("dense", [0, 1])
def test_no_step_of_a_prefill_engine_waits(monkeypatch, watch, dense):
    engine = Stepped(monkeypatch, "prefill", dense=dense)
    engine.add("a", 10, [7, 3, 5], kv=REMOTE)
    engine.run(watch, ("a", 0, 6))
    ((name, counts),) = engine.run(watch, ("a", 6, 4)).counts().items()
    assert not engine.worker._counting.stopped
    assert (name[0], counts.sum()) == ("a", 10 * LAYERS * TOP_K)


class OnDevice:
    """A tensor of an accelerator; its copies are recorded."""

    device = torch.device("cuda")

    def __init__(self, seen):
        self._seen = seen

    def clone(self):
        return self

    def to(self, device, *, non_blocking=False):
        self._seen.append((device, non_blocking))
        return torch.zeros(())


def test_a_report_starts_its_copies_and_is_waited_for_where_it_leaves_the_process(monkeypatch):
    seen = []
    event = SimpleNamespace(record=lambda: seen.append("record"), synchronize=lambda: seen.append("wait"))
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    one = OnDevice(seen)
    report = StepReport({"a": one, "b": one}, 1, union=one, balance=one, requests=one)
    assert seen == [("cpu", True)] * 5 + ["record"]
    sent(report)
    assert seen[6:] == ["wait"]


def test_what_is_sent_lies_in_pinned_memory(monkeypatch):
    asked, empty = [], torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *size, pin_memory, **of: asked.append(pin_memory) or empty(*size, **of)
    )
    Staging(torch.device("cuda"))
    assert asked
    assert all(asked)


@pytest.mark.parametrize("n", [0, 1, SIZE, SIZE + 1])
def test_numbers_arrive_and_stay(n):
    staging = Staging(torch.device("cpu"))
    first = staging.send(range(n))
    staging.send([-1] * n)
    assert first.tolist() == list(range(n))
