"""Models whose layers are simulated, and mixes of requests after a drift."""

from __future__ import annotations

from eldr.simulate.synthetic import Geometry, normalised

GEOMETRIES = {
    "qwen3-30b": Geometry(128, 8),
    "gpt-oss-120b": Geometry(128, 4),
    "gemma-4-26b": Geometry(128, 8),
}
LATER = {
    "task": normalised((10, 10, 10, 70)),
    "language": normalised((15, 15, 40, 20, 10)),
}
"""Shares of the kinds of requests of a synthetic workload after a drift."""
