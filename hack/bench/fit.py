"""Time and memory of a fit at the size of a real model: L = 48 layers, E = 128 experts, from 1,000 records to 100,000.

Prints one JSON list of figures, see ``render.py``. ``--large``: 100,000 records instead, minutes and 6 GiB of memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.fit.pipeline import FitSettings, fit
from eldr.fit.samples import Samples

LAYERS, EXPERTS, TOP_K = 48, 128, 8
DOMAINS = 12
CASES = [(1000, 16, 5, None), (4000, 16, 3, 2.0), (4000, 64, 3, None), (10_000, 16, 2, None)]
"""Records, workers, rounds, aim in seconds."""
LARGE = [(100_000, 16, 1, 60.0)]
BATCH = 500


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
    """Return the most memory that this process has held, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def case(n: int, k: int, rounds: int, aim: float | None) -> list[dict[str, Any]]:
    """Time whole fits: layer choice for both weightings, K-means, prediction on held-out records."""
    samples = structured(n)
    held = (samples.prefill.nbytes + samples.decode.nbytes) / (1 << 20)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        result = fit(samples, FitSettings(k=k, model="bench"), now=0.0)
        seconds.append(time.perf_counter() - began)
    assert 1 < len(result.centroids.kept) <= LAYERS // 3, "the mask is what this data is for"
    name = f"fit, {n} records of {LAYERS} x {EXPERTS} cells, K = {k}"
    return [
        {"name": name, "unit": "s", "aim": aim, "values": seconds},
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
        print(json.dumps(case(*(CASES + LARGE)[int(sys.argv[1])])))
        return
    figures = []
    numbers = range(len(CASES))
    if "--large" in sys.argv:
        numbers = range(len(CASES), len(CASES) + len(LARGE))
    for number in numbers:
        done = subprocess.run(
            [sys.executable, __file__, str(number)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # as the command has it
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        figures += json.loads(done.stdout)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
