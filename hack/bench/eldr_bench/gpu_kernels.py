"""What a GPU makes of our kernels: the same numbers as torch on the host, without a wait, in how many launches and microseconds.

    PYTHONPATH=.:hack/bench python -m eldr_bench.gpu_kernels

needs PyTorch and Triton, no vLLM. On a GPU it writes docs/benchmarks/gpu-kernels.md. Without one it runs the same code in Triton's
interpreter, as a rehearsal, and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from eldr_bench.machine import ROOT, revision
from eldr_bench.proof import require

PAGE = ROOT / "docs" / "benchmarks" / "gpu-kernels.md"
BLOCK, WINDOW, TRIALS = 16, 2, 50
RANKS, REDUNDANT = (4, 8), 32


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's experts."""

    name: str
    layers: int
    experts: int
    top_k: int


SHAPES = (
    Shape("Qwen3-30B-A3B", 48, 128, 8),
    Shape("Qwen3-235B-A22B", 94, 128, 8),
    Shape("GPT-OSS-120B", 36, 128, 4),
)
REHEARSED = (Shape("rehearsal", 3, 16, 2),)
DECODES, PREFILLS = (8, 64), (2048,)


def missing() -> str:
    """Return what has to be installed; empty if nothing has."""
    lacking = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    return (
        f"install {' and '.join(lacking)} beside this checkout, or set PYTHON to one that has it"
        if lacking
        else ""
    )


class Bench:
    """Our kernels on one device.

    Parameters
    ----------
    device : torch.device
        A GPU, or the CPU for a rehearsal.
    """

    def __init__(self, device: Any) -> None:
        import torch

        from eldr.engine.capture import kernels, kernels_triton

        self.torch, self.device = torch, device
        self.gpu = device.type == "cuda"
        self.plain, self.triton = kernels, kernels_triton
        self.rows: list[str] = []

    def choices(self, shape: Shape, tokens: int) -> Any:
        """Return random distinct experts of a step, int32 of shape (tokens, layers, top k), on the host."""
        drawn = self.torch.rand((tokens, shape.layers, shape.experts))
        return drawn.topk(shape.top_k, dim=-1).indices.to(self.torch.int32)

    def prefill(self, shape: Shape, tokens: int) -> None:
        """Compare and time the counting of a prefill step."""
        ids, slots = self.choices(shape, tokens), self.torch.arange(tokens)
        cells = -(-tokens // BLOCK) + 1, shape.layers, shape.experts
        ours = self.torch.zeros(cells, dtype=self.torch.uint8, device=self.device)
        right = ours.cpu().clone()
        there = ids.to(self.device), slots.to(self.device), BLOCK
        self.triton.count_blocks(ours, *there)
        self.plain.count_blocks(right, ids, slots, BLOCK)
        what = f"{shape.name}: prefill, {tokens} tokens"
        self._same(what, (ours[:-1], right[:-1]))  # the last row takes padding, in torch only
        self._time(what, lambda: self.triton.count_blocks(ours, *there))

    def decode(self, shape: Shape, requests: int) -> None:
        """Compare and time the counting of a decode step."""
        ids, slots = self.choices(shape, requests), self.torch.arange(requests) * BLOCK
        ours, right = (self._requests(shape, requests, on) for on in (self.device, None))
        there = ids.to(self.device), slots.to(self.device)
        what = f"{shape.name}: decode, batch {requests}"
        for at in range(WINDOW + 1):  # the last of them settles what the first one left
            active = self.triton.count_step(ours, there[0], there[1] + at)
            self._same(what, (active, self.plain.count_step(right, ids, slots + at)))
        for name in ("counts", "latest", "positions"):
            self._same(what, (getattr(ours, name)[:-1], getattr(right, name)[:-1]))
        self._time(what, lambda: self.triton.count_step(ours, *there))

    def _same(self, what: str, pair: tuple[Any, Any]) -> None:
        device, host = pair
        require(
            self.torch.equal(device.cpu(), host), f"{what}: the device finds otherwise than torch on the host"
        )

    def _requests(self, shape: Shape, requests: int, on: Any) -> Any:
        rows = self.plain.request_rows(
            *(requests, requests + 1),
            window=WINDOW,
            layers=shape.layers,
            experts=shape.experts,
            top_k=shape.top_k,
            block_size=BLOCK,
            device=on,
        )
        rows.owner[:requests, 0] = self.torch.arange(requests)
        return rows

    def union(self, shape: Shape, tokens: int) -> None:
        """Compare and time what ranks with requests of their own make of a step, where both have the same."""
        from eldr.engine.capture.kernels import FAILED

        ids, layers = self.choices(shape, tokens), self.torch.arange(shape.layers, dtype=self.torch.int32)

        def form(kernels: Any, device: Any, *, failed: bool = False) -> Callable[[], Any]:
            there, numbers = ids.to(device), layers.to(device)
            tail = self.torch.tensor([tokens, tokens, int(failed)], dtype=self.torch.int32, device=device)
            said = self.torch.zeros(
                shape.layers * shape.experts + len(tail), dtype=self.torch.int32, device=device
            )
            told = self.torch.zeros(shape.layers + 1, dtype=self.torch.int64, device=device)

            def run() -> Any:
                kernels.flag_experts(said, there, numbers, tail)
                kernels.sum_up_step(told, said, 0, 2)
                return told

            return run

        what = f"{shape.name}: a step over ranks, {tokens} tokens each"
        for failed in (True, False):
            ours = form(self.triton, self.device, failed=failed)
            right = form(self.plain, self.torch.device("cpu"), failed=failed)()
            self._same(what, (ours(), right))
            require((int(right[-1]) == FAILED) == failed, f"{what}: a rank that failed is not told of")
        self._time(what, ours)

    def exchange(self, shape: Shape, ranks: int) -> None:
        """Compare and time one layer's choice of replicas, where all ranks hold the same tokens: their sum is a product."""
        from eldr.engine.balance import choice, packing

        physical = -(-(shape.experts + min(REDUNDANT, shape.experts)) // ranks) * ranks
        placed = self.torch.from_numpy(packing.spread([1.0] * shape.experts, physical, ranks))
        ids = self.choices(shape, 64)[:, 0]
        of = self.torch.stack([self.torch.nonzero(placed == e)[0, 0] for e in range(shape.experts)])

        def balance(device: Any, form: choice.Form) -> Any:
            maps = _maps(self.torch, placed, shape.experts, device)
            group = choice.Group(ranks, physical // ranks, lambda said: said * ranks, lambda said: [said])
            return choice.Balance([("layer", maps)], group, form, shape.top_k)

        vllms = of[ids.long()].to(self.torch.int32)
        ours = balance(self.device, choice.in_triton())
        there = vllms.to(self.device)
        found = ours.exchange(0, there, 64)
        right = balance(self.torch.device("cpu"), choice.ON_HOST).exchange(0, vllms, 64)
        what = (
            f"{shape.name}: METRO's exchange of a layer, {ranks} ranks, {physical - shape.experts} replicas"
        )
        self._same(what, (found, right))
        self._time(what, lambda: ours.exchange(0, there, 64))
        if self.gpu:
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph):
                kept = ours.exchange(0, there, 64)
            graph.replay()
            self._same(f"{what}, in a graph", (kept, right))
            self._time(f"{what}, in a graph", graph.replay)

    def _time(self, what: str, call: Callable[[], object]) -> None:
        """Time a call, count its launches, and see that it does not wait; a line of the table."""
        call()  # compiled by now
        if not self.gpu:
            self.rows.append(f"| {what} | not timed | | equal to torch |")
            return
        cuda = self.torch.cuda
        cuda.synchronize()
        with _no_wait(self.torch):
            call()
        with self.torch.profiler.profile(activities=[self.torch.profiler.ProfilerActivity.CUDA]) as seen:
            call()
            cuda.synchronize()
        launched = [
            event.name for event in seen.events() if event.device_type == self.torch.autograd.DeviceType.CUDA
        ]
        taken = []
        for _ in range(TRIALS):
            begun, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begun.record()
            call()
            ended.record()
            ended.synchronize()
            taken.append(1e3 * begun.elapsed_time(ended))
        low, middle, high = statistics.quantiles(taken, n=4)
        self.rows.append(
            f"| {what} | {middle:.1f} ({low:.1f} .. {high:.1f}) | {len(launched)} | equal to torch, no wait |"
        )


@contextmanager
def _no_wait(torch: Any) -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _maps(torch: Any, placed: Any, experts: int, device: Any) -> Any:
    """Return vLLM's maps of a placement, of shape (physical experts,)."""
    where = [torch.nonzero(placed == expert)[:, 0] for expert in range(experts)]
    table = torch.full((experts, max(map(len, where))), -1, dtype=torch.int64)
    for expert, places in enumerate(where):
        table[expert, : len(places)] = places
    count = torch.tensor([len(places) for places in where])
    return SimpleNamespace(logical_to_physical_map=table.to(device), logical_replica_count=count.to(device))


def page(bench: Bench) -> str:
    """Return the page."""
    return "\n".join(
        [
            "# Our kernels on a GPU",
            "",
            f"`make gpu-kernels` on {datetime.now(UTC).date()}, {revision()}: {bench.torch.cuda.get_device_name()}, PyTorch {bench.torch.__version__}, {platform.machine()}.",
            "Each line was compared with torch on the host, bit for bit, and ran where a wait for the device is an error.",
            f"Medians and quartiles of {TRIALS} calls, launch included. A multiplication stands in for the sum of METRO's exchange, in one of its launches.",
            "",
            "| what | us | launches | proof |",
            "|---|---|---|---|",
            *bench.rows,
            "",
        ]
    )


def main() -> None:
    """Compare and time; write the page where there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rehearse", action="store_true", help="run in Triton's interpreter although there is a GPU"
    )
    asked = parser.parse_args()
    if why := missing():
        sys.exit(f"gpu-kernels: {why}")
    import torch

    gpu = torch.cuda.is_available() and not asked.rehearse
    if not gpu and os.environ.get("TRITON_INTERPRET") != "1":  # triton reads it when it is imported
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "TRITON_INTERPRET": "1"})
    torch.manual_seed(0)
    bench = Bench(torch.device("cuda" if gpu else "cpu"))
    for shape in SHAPES if gpu else REHEARSED:
        for requests in DECODES if gpu else (5,):
            bench.decode(shape, requests)
        for tokens in PREFILLS if gpu else (40,):
            bench.prefill(shape, tokens)
        bench.union(shape, 64 if gpu else 5)
        for ranks in RANKS:
            bench.exchange(shape, ranks)
    print("\n".join(bench.rows))
    if gpu:
        PAGE.write_text(page(bench))
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        print(
            "a rehearsal without a GPU: the code ran and its numbers are right; nothing was timed or written"
        )


if __name__ == "__main__":
    main()
