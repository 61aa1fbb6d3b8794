"""What requests of two lengths met, as both studies tell it. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eldr.simulate.workload import Times


def quantities(
    tpot: Times, waited: Times, latency: Times, is_long: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Return means and percentiles, seconds; those of long requests where there are any.

    Parameters
    ----------
    tpot, waited, latency : ndarray of float, shape (n,)
        Seconds between tokens, mean of each request; until its first token, and its last.
    is_long : ndarray of bool, shape (n,)
    """
    found = {"tpot_mean": float(tpot.mean())}
    for name, values in (
        ("short", waited[~is_long]),
        ("long", waited[is_long]),
        ("tpot", tpot),
        ("latency", latency),
    ):
        if len(values):
            found[f"{name}_p50"], found[f"{name}_p99"] = np.percentile(values, (50, 99)).tolist()
    return found


def rounded(found: dict[str, float]) -> dict[str, float]:
    """Return quantities with the five digits that are kept."""
    return {name: float(f"{value:.5g}") for name, value in found.items()}
