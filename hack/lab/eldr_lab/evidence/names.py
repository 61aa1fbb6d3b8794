"""How things are called in the document."""

from __future__ import annotations

from eldr_lab.evidence.cells import (
    BAND,
    BLIND,
    BOUNDED,
    CEILING,
    JSQ,
    MARGINAL,
    MIN2,
    PRIOR,
    ROLLING,
    ROLLING_PRIOR,
    ROLLING_VANILLA,
    TOP1,
    VANILLA,
)

MODELS = {
    "qwen3-30b": "Qwen3-30B",
    "gpt-oss-120b": "GPT-OSS-120B",
    "gemma-4-26b": "Gemma-4-26B",
}
POLICIES = {
    "RoundRobin": "round robin", JSQ: "JSQ", "PowerOfTwo": "power of two", "Random": "random", "Domain": "Domain",
    BAND: "band", MIN2: "band, min-2", BOUNDED: "band, bounded 1.25", TOP1: "band, tau = 0", VANILLA: "band, plain K-means",
    MARGINAL: "MarginalUnion", PRIOR: "MarginalUnion + prior", ROLLING: "band, min-2, refit",
    ROLLING_VANILLA: "band, min-2, refit, plain K-means", ROLLING_PRIOR: "MarginalUnion + prior, refit",
    BLIND: "MarginalUnion, blind", CEILING: "ceiling",
}  # fmt: skip
FIELDS = {
    BAND: "`policy: ELDR`",
    MIN2: "`policy: ELDR` with `minCandidates: 2`",
    BOUNDED: "`policy: ELDR` with `maxLoad: 1.25`",
    MARGINAL: "`policy: MarginalUnion` with `prior: 0` in a routing file",
    PRIOR: "`policy: MarginalUnion` with centroids as its prior",
}
COLOURS = {
    JSQ: "tab:grey", "RoundRobin": "black", "Domain": "tab:blue", BAND: "tab:orange", MIN2: "tab:brown", BOUNDED: "tab:red",
    MARGINAL: "tab:olive", PRIOR: "tab:green", TOP1: "tab:pink", VANILLA: "tab:purple", ROLLING: "tab:cyan", ROLLING_PRIOR: "darkgreen", BLIND: "slategrey",
}  # fmt: skip


def model(geometry: str) -> str:
    """Return a model's name."""
    return MODELS[geometry]


def policy(name: str) -> str:
    """Return a policy's name."""
    return POLICIES.get(name, name)


def place(geometry: str, workload: str) -> str:
    """Return a model and its workload."""
    return f"{model(geometry)}, {workload}"
