"""What the traces of a comparison show together: figures and page.

Means over traces have Student's t intervals. Nothing here measures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from eldr_bench.machine import ROOT
from eldr_lab.report import filled, table
from eldr_lab.steps.machine import LONGEST, MEASURES, SHORTEST, TIMES, WIDTH
from eldr_lab.synthetic.contenders import LEARNED, PRIOR
from eldr_lab.synthetic.pairs import change

Json = dict[str, Any]
PAGE = ROOT / "docs" / "benchmarks" / "policies.md"
FIGURES = PAGE.with_suffix(".json")
TEMPLATES = Path(__file__).with_name("templates")
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
_BUSY = 2.0
"""How much slower its slowest moments were than its fastest ones, where other programs had the caches: idle, 1.6 at most."""
_FEW_TRACES = "**Of {} of {} traces: too few to call a policy better or worse.**\n\n"
_BUSY_MACHINE = "**A busy machine**: other programs had a part of its caches, so that steps depended less on their experts than on an idle one.\n\n"


class Measured(NamedTuple):
    """How a policy differs from JSQ in one pool.

    Attributes
    ----------
    pool : str
    policy : str
        As in tables.
    traces : int
    changes : dict of str to (float, float)
        By measure: mean of the traces' paired changes and half the width of its 95 % interval, percent; NaN of one trace.
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
    """Return the figures that were published, if there are any."""
    if not path.exists():
        return None
    found: Json = json.loads(path.read_text())
    return found


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
    pools = [_pool(json.loads(setting), some) for setting, some in settings.items()]
    factors = [factor for row in rows for factor in row["slowness"]]
    return about | {
        "commits": sorted({row["commit"] for row in rows}),
        "dates": sorted({row["date"] for row in rows}),
        "slowness": [min(factors), max(factors)],
        "traces": min(len(one["traces"]) for one in pools),
        "pools": pools,
    }


def _pool(setting: Json, rows: Sequence[Json]) -> Json:
    """Return one pool's figures over its traces.

    Times are in seconds, changes in percent with half the width of their intervals.
    """
    rows = sorted(rows, key=lambda row: int(row["trace"]))
    found = [row["found"] for row in rows]
    first, *others = names = list(found[0]["policies"])
    by_trace = {name: {m: [one["policies"][name][m] for one in found] for m in MEASURES} for name in names}
    return setting | {
        "traces": [row["trace"] for row in rows],
        "requests": [one["requests"] for one in found],
        "rate": None if setting["holds"] else found[0]["rate"],
        "policies": {name: {m: fmean(some) for m, some in own.items()} for name, own in by_trace.items()},
        "by_trace": by_trace,
        "changes": {name: {m: _percent(by_trace[name][m], by_trace[first][m]) for m in MEASURES} for name in others},
        "predicted": {} if setting["holds"] else {
            name: {
                "active experts": fmean(one["predicted"][name]["active experts"] for one in found),
                "TPOT P50": _percent(*([one["predicted"][which]["TPOT P50"] for one in found] for which in (name, first))),
            }
            for name in names
        },
    }  # fmt: skip


def _percent(values: Sequence[float], base: Sequence[float]) -> list[float | None]:
    mean, half = change(values, base)
    return [100.0 * mean, None if math.isnan(half) else 100.0 * half]  # JSON has no NaN


def page(results: Json) -> str:
    """Return the page."""
    few, busy = results["traces"] < LEAST, results["slowness"][1] > _BUSY * results["slowness"][0]
    requests = [n for pool in results["pools"] for n in pool["requests"]]
    verdicts = [
        [one.pool, one.policy, *(one.verdict(measure) for measure in TIMES)] for one in measured(results)
    ]
    values = results | {
        "warnings": _FEW_TRACES.format(results["traces"], LEAST) * few + _BUSY_MACHINE * busy,
        "dates": ", ".join(results["dates"]), "commits": ", ".join(results["commits"]), "kinds": ", ".join(results["kinds"]),
        "reference": 1e3 * results["reference"], "width": WIDTH, "shortest": SHORTEST, "longest": LONGEST,
        "fewest": min(requests), "most": max(requests), "verdicts": table(("pool", "policy", *TIMES), verdicts),
        "pools": "\n\n".join(_section(pool) for pool in results["pools"]),
    }  # fmt: skip
    return filled(TEMPLATES / "policies.txt", **values)


def _section(pool: Json) -> str:
    order = ("active experts", "batch", *TIMES, "tokens/s")
    rows = []
    for name, values in pool["policies"].items():
        cells = {m: f"{1e3 * v:.2f}" if m in TIMES else f"{v:.1f}" for m, v in values.items()}
        for measure, found in pool["changes"].get(name, {}).items():
            cells[measure] += f" ({_text(*found)})"
        rows.append([NAMES.get(name, name), *(cells[measure] for measure in order)])
    head = ("policy", "active experts", "batch", "TPOT mean, ms", "P50, ms", "P99, ms", "tokens/s")
    parts = [f"## {title(pool)}", f"Traces: {len(pool['traces'])}.", table(head, rows)]
    if pool["predicted"]:
        predicted = []
        for name, simulated in pool["predicted"].items():
            real = pool["policies"][name]["active experts"]
            off = 100 * (simulated["active experts"] / real - 1.0)
            row = [f"{simulated['active experts']:.1f} ({off:+.1f} %)", f"{real:.1f}", "", ""]
            if name in pool["changes"]:
                row[2:] = _text(*simulated["TPOT P50"]), _text(*pool["changes"][name]["TPOT P50"])
            predicted.append([NAMES.get(name, name), *row])
        parts.append(
            table(
                ("policy", "active experts, simulated", "here", "TPOT P50 against JSQ, simulated", "here"),
                predicted,
            )
        )
    return "\n\n".join(parts)


def _text(mean: float, half: float | None) -> str:
    return f"{mean:+.1f} %" if half is None else f"{mean:+.1f} ±{half:.1f} %"
