"""Time and memory of a fit at the size of a real model: L = 48 layers, E = 128 experts, from 1,000 records to 100,000.

Every fit must have chosen layers by correlation for both weightings, filled K clusters and predicted placement on held-out records.
Prints one JSON list of figures, see ``__main__.py``. ``--large``: 100,000 records instead, minutes and 6 GiB of memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.fit.evaluation import MOST_RECORDS
from eldr.fit.pipeline import FitResult, FitSettings, fit, split
from eldr.fit.samples import Samples
from eldr_bench.proof import require

LAYERS, EXPERTS, TOP_K = 48, 128, 8
DOMAINS = 12
CASES = [(1000, 16, 5, 0.7), (4000, 16, 3, 2.0), (4000, 64, 3, None), (10_000, 16, 2, None)]
"""Records, engines, rounds, aim in seconds."""
LARGE = [(100_000, 16, 1, 60.0)]
BATCH = 500
OTHERS = 256
"""MiB that the process may hold beside its records before a fit: the interpreter and what it imports."""


def structured(n: int) -> Samples:
    """Return requests of several domains whose prompts foretell the experts of decode steps in every third layer only.

    The other layers follow a style of the prompt that decode steps know nothing of, so that a good mask drops them.
    """
    rng = np.random.default_rng(0)
    told = np.where(np.arange(LAYERS) % 3 == 0, 1.2, 0.15).astype(np.float32)[:, None]
    kinds, styles = rng.standard_normal((2, DOMAINS, LAYERS, EXPERTS), dtype=np.float32)
    kind, style = rng.integers(0, DOMAINS, (2, n))
    tokens = np.clip(rng.lognormal(np.log(110), 0.8, n), 16, 1024).astype(np.float32)
    prefill = np.empty((n, LAYERS, EXPERTS), dtype=np.uint16)
    decode = np.empty_like(prefill)
    for at in range(0, n, BATCH):
        part = slice(at, at + BATCH)
        own = 0.4 * rng.standard_normal((len(kind[part]), LAYERS, EXPERTS), dtype=np.float32)
        prompt = kinds[kind[part]] * told + styles[style[part]] * (1.2 - told) + own
        prefill[part] = counts(rng, prompt, tokens[part])
        decode[part] = counts(rng, 0.9 * kinds[kind[part]] + own, np.full(len(own), 256, np.float32))
    return Samples(
        prefill=prefill,
        decode=decode,
        decode_tokens=np.full(n, 256),
        in_flight=np.full(n, 16),
        top_k=TOP_K,
        skipped={},
    )


def counts(
    rng: np.random.Generator, logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return counts around their means with the variance of a Poisson draw, at a tenth of its time."""
    mean = np.exp(logits)
    mean *= (TOP_K * tokens)[:, None, None] / mean.sum(axis=-1, keepdims=True)
    noise = rng.standard_normal(mean.shape, dtype=np.float32)
    return np.maximum(np.rint(mean + np.sqrt(mean) * noise), 0.0)


def peak() -> float:
    """Return the most memory that this process has held since :func:`forget_peak`, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def forget_peak() -> None:
    """Begin again at what is held now: making the records took memory, too."""
    Path("/proc/self/clear_refs").write_text("5")


def prove(samples: Samples, result: FitResult, k: int) -> None:
    """Hold a fit against what its row names."""
    kept = result.centroids.kept
    require(result.basis == "correlation", f"layers rest on {result.basis}")
    orders = {name: sorted(choice.order) for name, choice in result.choices.items()}
    every = list(range(LAYERS))
    require(orders == {"counts": every, "counts_idf": every}, f"layers were chosen from {orders}")
    # every third one foretells the experts of decode steps
    told = 1 < len(kept) <= LAYERS // 3 and not any(layer % 3 for layer in kept)
    require(told, f"layers {kept} were kept, of which the data make others")
    sizes, held_out = result.sizes, result.evaluation and result.evaluation.held_out
    require(result.centroids.k == k, f"{result.centroids.k} clusters")
    require(max(sizes) <= -(-result.fitted // k), f"clusters of {sizes} records are not level")
    require(
        result.fitted == sum(sizes) == len(split(len(samples))[0]), f"{result.fitted} records were fitted"
    )
    require(held_out == min(len(samples) // 4, MOST_RECORDS), f"{held_out} records were placed")


def case(n: int, k: int, rounds: int, aim: float | None) -> list[dict[str, Any]]:
    """Time whole fits: layer choice for both weightings, K-means, prediction on held-out records."""
    samples = structured(n)
    held = (samples.prefill.nbytes + samples.decode.nbytes) / (1 << 20)
    seconds, spent = [], []
    forget_peak()
    require(
        peak() < held + OTHERS, f"the process holds {peak():.0f} MiB before it fits {held:.0f} MiB of records"
    )
    for _ in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        result = fit(samples, FitSettings(k=k, model="bench"), now=0.0)
        seconds.append(time.perf_counter() - began)
        spent.append(time.process_time() - used)
        prove(samples, result, k)
    name = f"fit, {n} records of {LAYERS} x {EXPERTS} cells, K = {k}"
    return [
        {"name": name, "unit": "s", "aim": aim, "values": seconds},
        {"name": f"{name}: CPU time of it", "unit": "s", "aim": None, "values": spent},
        {
            "name": f"{name}: memory beside the {held:.0f} MiB of the records",
            "unit": "MiB",
            "aim": 2048.0 if n == LARGE[0][0] else None,
            "values": [peak() - held],
        },
    ]


def main() -> None:
    """Run each case in a process of its own, so that its peak of memory is its own."""
    if len(sys.argv) == 2 and sys.argv[1].isdigit():
        number, cases = int(sys.argv[1]), CASES + LARGE
        if number >= len(cases):
            sys.exit(f"case {number}: there are 0 to {len(cases) - 1}")
        print(json.dumps(case(*cases[number])))
        return
    figures = []
    numbers = range(len(CASES))
    if "--large" in sys.argv:
        numbers = range(len(CASES), len(CASES) + len(LARGE))
    for number in numbers:
        done = subprocess.run(
            [sys.executable, "-m", "eldr_bench.fit", str(number)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # as the command has it
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.returncode)
        figures += json.loads(done.stdout)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
