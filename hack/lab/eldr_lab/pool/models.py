"""Models whose layers are simulated, and mixes of requests after a drift."""

from __future__ import annotations

from dataclasses import dataclass

from eldr_lab.synthetic.activations import Geometry, normalised


@dataclass(frozen=True, slots=True)
class Model(Geometry):
    """A model's mixture-of-experts layers, and the ranks of an engine that serves it."""

    layers: int
    ranks: int = 1


GEOMETRIES = {
    "qwen3-30b": Model(128, 8, 48),
    "gpt-oss-120b": Model(128, 4, 36),
    "gemma-4-26b": Model(128, 8, 30),
    "qwen3-235b": Model(128, 8, 94, ranks=4),
    "deepseek-v3": Model(256, 8, 58, ranks=8),
}
LATER = {
    "task": normalised((10, 10, 10, 70)),
    "language": normalised((15, 15, 40, 20, 10)),
}
"""Shares of the kinds of requests of a synthetic workload after a drift."""
