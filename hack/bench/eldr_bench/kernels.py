"""How long counting takes, beside the mixture-of-experts layer whose choices are counted: Qwen3-30B-A3B's shape.

    PYTHONPATH=.:hack/bench $(hack/vllm/install)/bin/python -m eldr_bench.kernels

runs in an engine's environment, on its GPU if it has one (the Triton form, and vLLM's fused experts), else on the CPU (the torch form,
and a matrix product per expert), and writes docs/benchmarks/kernels.md. What was counted while the clock ran is held against the choices.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from eldr.engine.capture.backend import kernels_for
from eldr.engine.capture.kernels import RequestRows, request_rows, take_requests
from eldr_bench.machine import revision
from eldr_bench.proof import require

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks" / "kernels.md"
LAYERS, EXPERTS, TOP_K = 48, 128, 8
HIDDEN, INNER = 2048, 768
BLOCK, BLOCKS, ROWS = 16, 4096, 512
TOKENS = (1, 8, 64, 512, 2048, 8192)


def choices(tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random distinct experts (T, LAYERS, TOP_K) and slots that fill blocks one after the other."""
    ids = torch.rand((tokens, LAYERS, EXPERTS), device=device).topk(TOP_K, dim=-1).indices
    return ids.to(torch.int32), torch.arange(tokens, device=device)


def generating(requests: int, device: torch.device) -> RequestRows:
    """Return rows of requests, each of which generates into a block of its own."""
    rows = request_rows(
        *(ROWS, BLOCKS),
        window=2,
        layers=LAYERS,
        experts=EXPERTS,
        top_k=TOP_K,
        block_size=BLOCK,
        device=device,
    )
    rows.owner[:requests, 0] = torch.arange(requests, device=device)
    return rows


def moe_layer(tokens: int, ids: torch.Tensor) -> Callable[[], object]:
    """Return a call that computes one layer of experts in bfloat16 for these choices."""
    device = ids.device
    x = torch.randn((tokens, HIDDEN), dtype=torch.bfloat16, device=device)
    up = torch.randn((EXPERTS, 2 * INNER, HIDDEN), dtype=torch.bfloat16, device=device)
    down = torch.randn((EXPERTS, HIDDEN, INNER), dtype=torch.bfloat16, device=device)
    if device.type == "cuda":
        from vllm.model_executor.layers.fused_moe import fused_experts

        weights = torch.full(ids.shape, 1 / TOP_K, dtype=torch.float32, device=device)
        return lambda: fused_experts(x, up, down, weights, ids)
    rows = {int(e): torch.nonzero((ids == e).any(1)).flatten() for e in ids.unique()}
    tokens_of_experts = sum(len(mine) for mine in rows.values())
    require(
        tokens_of_experts == tokens * TOP_K,
        f"experts compute {tokens_of_experts} tokens, not {tokens} x {TOP_K}",
    )

    def compute() -> None:
        for expert, mine in rows.items():
            gate, value = (x[mine] @ up[expert].T).chunk(2, dim=-1)
            (torch.nn.functional.silu(gate) * value) @ down[expert].T

    return compute


def seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time of a call."""
    taken = []
    for _ in range(repeats + 1):  # the first one compiles and touches
        if device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:])


def prove(what: str, counted: torch.Tensor, ids: torch.Tensor, calls: int) -> None:
    """Hold counts, shape (rows, LAYERS, EXPERTS), against so many calls that counted these choices."""
    experts = torch.nn.functional.one_hot(ids.to(torch.int64), EXPERTS).sum((0, 2)) * calls
    found = counted.to(torch.int64).sum(0)
    wrong = int((found != experts).sum())
    require(not wrong, f"{what}: {wrong} of {experts.numel()} cells hold other counts than the choices make")


def measure(tokens: int, device: torch.device, repeats: int) -> str:
    """Return a line of the table."""
    kernels = kernels_for(device)
    form = "kernels_triton" if device.type == "cuda" else "kernels"
    require(
        kernels.__name__ == f"eldr.engine.capture.{form}",
        f"the form that runs is {kernels.__name__}, not {form}",
    )
    ids, slots = choices(tokens, device)
    table = torch.zeros((BLOCKS + 1, LAYERS, EXPERTS), dtype=torch.uint8, device=device)
    layer = seconds(moe_layer(tokens, ids[:, 0].contiguous()), device, repeats)
    prefill = seconds(lambda: kernels.count_blocks(table, ids, slots, BLOCK), device, repeats) / LAYERS
    prove(f"prefill, {tokens} tokens", table[:BLOCKS], ids, 1)  # a block that is used again is cleared first
    cells = [f"{layer * 1e6:.0f}", f"{prefill * 1e6:.2f}", f"{100 * prefill / layer:.2f} %"]
    if tokens <= ROWS:
        rows, begins = generating(tokens, device), torch.arange(tokens, device=device) * BLOCK
        at = itertools.count()
        decode = seconds(lambda: kernels.count_step(rows, ids, begins + next(at)), device, repeats) / LAYERS
        mine = torch.arange(tokens, device=device)
        prove(
            f"decode, {tokens} tokens",
            take_requests(rows, mine, torch.full_like(mine, BLOCK)),
            ids,
            repeats + 1,
        )
        cells += [f"{decode * 1e6:.2f}", f"{100 * decode / layer:.2f} %"]
    else:
        cells += ["", ""]
    return f"| {tokens} | {' | '.join(cells)} |"


def page(lines: list[str], device: torch.device) -> str:
    """Return the page."""
    gpu = device.type == "cuda"
    name = (
        torch.cuda.get_device_name()
        if gpu
        else f"a CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
    )
    form = (
        "the Triton form, beside vLLM's fused experts"
        if gpu
        else "the torch form, beside a matrix product per expert; GPUs run the Triton form ([measured there](gpu-kernels.md))"
    )
    return "\n".join(
        [
            "# What counting costs, per layer",
            "",
            f"`hack/bench/eldr_bench/kernels.py`, {revision()}, on {name}: {form}. Qwen3-30B-A3B's shape: {LAYERS} layers of {EXPERTS} experts, top-{TOP_K},",
            f"hidden size {HIDDEN}, expert size {INNER}, bfloat16, KV blocks of {BLOCK} tokens. Medians; all layers are counted by one call, and the",
            "time is divided by their number. A step has attention and more beside its experts, so of a step the share is smaller.",
            "",
            "| tokens | experts of a layer (us) | prefill counts (us) | share | decode counts (us) | share |",
            "|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )


def main() -> None:
    """Measure, and write docs/benchmarks/kernels.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        choices=range(1, BLOCK),
        metavar="N",
        help="calls of which the median is taken (default 5)",
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    lines = []
    for tokens in TOKENS:
        lines.append(measure(tokens, device, options.repeats))
        print(lines[-1], flush=True)
    PAGE.write_text(page(lines, device))


if __name__ == "__main__":
    main()
