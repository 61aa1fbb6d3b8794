"""Time of a fit at the size of a real model: N = 1000 requests, L = 48 layers, E = 128 experts, K = 16 workers.

Prints one JSON list of figures, see ``render.py``.
"""

from __future__ import annotations

import json
import time

import numpy as np

from eldr.fit.pipeline import FitSettings, fit
from eldr.fit.samples import Samples

ROUNDS = 7


def synthetic(n: int, layers: int, experts: int, top_k: int) -> Samples:
    """Return requests of 8 kinds: gates of a kind prefer the same experts, prompts and outputs are multinomial."""
    rng = np.random.default_rng(0)
    kinds = rng.gumbel(size=(8, layers, experts)) * 1.2
    odds = np.exp(kinds[rng.integers(0, 8, n)] + rng.normal(0, 0.7, (n, layers, experts)))
    odds /= odds.sum(axis=-1, keepdims=True)
    tokens = np.clip(rng.lognormal(np.log(110), 0.8, n), 16, 1024).astype(int)
    return Samples(
        prefill=np.stack([rng.multinomial(t * top_k, odds[i]) for i, t in enumerate(tokens)]).astype(
            np.uint32
        ),
        decode=np.stack([rng.multinomial(256 * top_k, odds[i]) for i in range(n)]).astype(np.uint32),
        decode_tokens=np.full(n, 256),
        in_flight=np.full(n, 16),
        top_k=top_k,
        skipped={},
    )


def main() -> None:
    """Time whole fits: layer choice for both weightings, K-means, prediction on held-out records."""
    samples = synthetic(1000, 48, 128, 8)
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        fit(samples, FitSettings(k=16, model="bench"), now=0.0)
        seconds.append(time.perf_counter() - began)
    print(
        json.dumps(
            [
                {
                    "name": "fit, N = 1000, 48 x 128 cells, K = 16, prediction included",
                    "unit": "s",
                    "aim": 2.0,
                    "values": seconds,
                }
            ]
        )
    )


if __name__ == "__main__":
    main()
