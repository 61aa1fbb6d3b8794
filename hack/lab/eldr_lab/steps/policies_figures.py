"""What the traces of a comparison say together: means over traces, and Student's t intervals. Nothing here measures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from eldr_bench.machine import ROOT
from eldr_lab.steps.outcome import MEASURES
from eldr_lab.synthetic.contenders import LEARNED, PRIOR
from eldr_lab.synthetic.pairs import change, half_width

Json = dict[str, Any]

FIGURES = ROOT / "docs" / "benchmarks" / "policies.json"
LEAST = 6
"""Traces; of fewer, no policy is called better or worse than another."""
NAMES = {
    "JSQ": "JSQ",
    "ELDR": "band",
    "ELDR:max_load=1.25": "band, bounded 1.25",
    "MarginalUnion": "MarginalUnion",
    LEARNED: "MarginalUnion + learned prior",
    PRIOR: "MarginalUnion + prior",
}
TIMES = ("TPOT mean", "TPOT P50", "TPOT P99")


class Measured(NamedTuple):
    """How a policy differs from JSQ in one pool.

    Attributes
    ----------
    pool : str
    policy : str
        As in tables.
    traces : int
    changes : dict of str to (float, float)
        By measure, see :data:`MEASURES`: mean of the traces' paired changes and half the width of its 95 % interval, percent; NaN of one trace.
    """

    pool: str
    policy: str
    traces: int
    changes: dict[str, tuple[float, float]]

    def verdict(self, measure: str) -> str:
        """Say what the interval of a time says."""
        mean, half = self.changes[measure]
        if self.traces < LEAST:
            return f"too few traces ({self.traces})"
        if abs(mean) <= half:
            return f"not distinguished over {self.traces} traces"
        return f"{'shorter' if mean < 0 else 'longer'} over {self.traces} traces"


def load(path: Path = FIGURES) -> Json | None:
    """Return the figures that were published; None if there are none, or none of traces."""
    if not path.exists():
        return None
    found: Json = json.loads(path.read_text())
    return found if "traces" in found else None


def measured(results: Json) -> list[Measured]:
    """Return every policy's changes, pool by pool."""
    return [
        Measured(title(pool), NAMES.get(name, name), len(pool["traces"]), {m: (mean, math.nan if half is None else half) for m, (mean, half) in changes.items()})
        for pool in results["pools"]
        for name, changes in pool["changes"].items()
    ]  # fmt: skip


def title(pool: Json) -> str:
    """Return a pool's name."""
    if pool["holds"]:
        return f"{pool['engines']} engines, {pool['engines'] * pool['batch']} requests kept in flight"
    return f"{pool['engines']} engines, {pool['rate']:.1f} requests/s"


def as_json(about: Json, rows: Sequence[Json]) -> Json:
    """Return all figures.

    Parameters
    ----------
    about : dict
        What was measured, and with what.
    rows : sequence of dict
        Results: ``setting``, ``trace``, ``commit``, ``date``, ``slowness``, and ``found`` as :meth:`eldr_lab.steps.pools.Trace.run` returns it.
    """
    settings: dict[str, list[Json]] = {}
    for row in rows:
        settings.setdefault(json.dumps(row["setting"]), []).append(row)
    pools = [pool(json.loads(setting), some) for setting, some in settings.items()]
    factors = [factor for row in rows for factor in row["slowness"]]
    return about | {
        "commits": sorted({row["commit"] for row in rows}),
        "dates": sorted({row["date"] for row in rows}),
        "slowness": [min(factors), max(factors)],
        "traces": min(len(one["traces"]) for one in pools),
        "pools": pools,
    }


def pool(setting: Json, rows: Sequence[Json]) -> Json:
    """Return one pool's figures over its traces; times in seconds, changes in percent with half the width of their intervals."""
    rows = sorted(rows, key=lambda row: int(row["trace"]))
    found = [row["found"] for row in rows]
    names = list(found[0]["policies"])
    by_trace = {name: {m: [one["policies"][name][m] for one in found] for m in MEASURES} for name in names}
    first, *others = names
    return setting | {
        "traces": [row["trace"] for row in rows],
        "requests": [one["requests"] for one in found],
        "rate": None if setting["holds"] else found[0]["rate"],
        "policies": _means(by_trace),
        "by_trace": by_trace,
        "changes": {
            name: {m: _percent(by_trace[name][m], by_trace[first][m]) for m in MEASURES} for name in others
        },
        "proofs": {
            name: {
                "reason": found[0]["proofs"][name]["reason"],
                **{
                    part: sum(one["proofs"][name][part] for one in found)
                    for part in ("decisions", "unlike", "answered", "tokens")
                },
            }
            for name in names
        },
        "predicted": {}
        if setting["holds"]
        else {
            name: {
                "active experts": fmean(one["predicted"][name]["active experts"] for one in found),
                "TPOT P50": _percent(*([one["predicted"][which]["TPOT P50"] for one in found] for which in (name, first))),
            }
            for name in names
        },
        "law": _law([one["law"] for one in found]),
        "laws": {name: _law([one["laws"][name] for one in found]) for name in names},
        "learned": {
            name: {
                "per_expert": _interval([one["learned"][name]["constants"][1] for one in found]),
                "above_fit": _interval(
                    [one["learned"][name]["constants"][1] - one["laws"][name]["constants"][1] for one in found]
                ),
            }
            for name in names
        },
    }  # fmt: skip


def _means(values: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    return {name: {measure: fmean(some) for measure, some in own.items()} for name, own in values.items()}


def _law(fits: Sequence[Json]) -> Json:
    return {
        "constants": [_interval([one["constants"][at] for one in fits]) for at in range(3)],
        "r2": fmean(one["r2"] for one in fits),
        "r2_batch": fmean(one["r2_batch"] for one in fits),
        "steps": sum(one["steps"] for one in fits),
    }


def _percent(values: Sequence[float], base: Sequence[float]) -> list[float | None]:
    mean, half = change(values, base)
    return [100.0 * mean, _known(100.0 * half)]


def _interval(values: Sequence[float]) -> list[float | None]:
    return [fmean(values), _known(half_width(values))]


def _known(half: float) -> float | None:
    """Return half an interval's width, None for that of one trace: JSON has no NaN."""
    return None if math.isnan(half) else half
