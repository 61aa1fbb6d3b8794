"""CPU time of one routing decision: signature off the wire, similarities, policy, lease.

Prints one JSON list of figures, see ``render.py``.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

from eldr.centroids import CentroidSet
from eldr.contract import POLICY_ELDR, POLICY_MARGINAL, ROLE_DECODE
from eldr.wire import ExpertCounts, encode_counts
from eldr_router.plan.signature import read_signature
from eldr_router.plan.spec import EndpointSpec
from eldr_router.plan.table import Intent, make_table
from eldr_router.state.locality import Locality
from eldr_router.state.placer import Placer
from eldr_router.state.registry import Registry

LAYERS, EXPERTS, TOP_K, TOKENS = 48, 128, 8, 512
ROUNDS, REPEATS = 7, 400
IN_FLIGHT = 20
ALL_LAYERS = POLICY_MARGINAL, 17
SETUPS = {
    (POLICY_ELDR, 16): ("band, K = 16", 45.0),
    (POLICY_MARGINAL, 16): ("MarginalUnion with prior, K = 16", 100.0),
    ALL_LAYERS: ("MarginalUnion with prior on all layers, K = 17", None),
    (POLICY_ELDR, 256): ("band, K = 256", 600.0),
}


def centroid_set(k: int, rng: np.random.Generator) -> CentroidSet:
    centers = rng.random((k, LAYERS * EXPERTS), dtype=np.float32)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    return CentroidSet(
        model="m",
        n_layers=LAYERS,
        n_experts=EXPERTS,
        top_k=TOP_K,
        kept=tuple(range(LAYERS)),
        weighting="counts",
        weights=np.ones((LAYERS, EXPERTS), dtype=np.float32),
        centers=centers,
        samples=1,
        created=0.0,
    )


def main() -> None:
    """Time decisions, rounds interleaved."""
    if os.environ.get("OMP_NUM_THREADS") != "1":  # as the router does it, and before NumPy starts its threads
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
    rng = np.random.default_rng(0)
    counts = rng.multinomial(TOKENS * TOP_K, [1 / EXPERTS] * EXPERTS, size=LAYERS).astype(np.uint16)
    wire = encode_counts(ExpertCounts(counts, top_k=TOP_K, tokens=TOKENS, exact=True))
    setups = {}
    for policy, k in SETUPS:
        registry = Registry(time.monotonic)
        registry.replace(ROLE_DECODE, [EndpointSpec(ROLE_DECODE, f"d{i}", "h", i, i) for i in range(k)])
        table = make_table(Intent(policy=policy), epoch=1, active=None, centroids=centroid_set(k, rng))
        placer = Placer(registry, rng)
        if (policy, k) == ALL_LAYERS:
            placer.locality = Locality(most_layers=LAYERS)
        for _ in range(IN_FLIGHT * k):
            placer.place(table, read_signature(wire))
        setups[policy, k] = placer, table
    times: dict[tuple[str, int], list[float]] = {setup: [] for setup in setups}
    parse: list[float] = []
    for _ in range(ROUNDS):  # interleaved, so that a busy moment hits all alike
        begun = time.process_time_ns()
        for _ in range(REPEATS):
            read_signature(wire)
        parse.append((time.process_time_ns() - begun) / REPEATS / 1e3)
        for setup, (placer, table) in setups.items():
            begun = time.process_time_ns()
            for _ in range(REPEATS):
                placer.place(table, read_signature(wire)).lease.release()
            times[setup].append((time.process_time_ns() - begun) / REPEATS / 1e3)

    cells = f"{LAYERS} x {EXPERTS} cells"
    figures = [{"name": f"signature off the wire, {cells}", "unit": "us", "aim": None, "values": parse}]
    figures += [
        {"name": f"route decision, {cells}, {name}", "unit": "us", "aim": aim, "values": times[setup]}
        for setup, (name, aim) in SETUPS.items()
    ]
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
