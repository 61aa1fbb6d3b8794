"""What the comparison of policies on real engines looks like: figures, page, picture. Nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from eldr_bench.machine import ROOT, cpu_model
from eldr_lab.steps.machine import WIDTH
from eldr_lab.steps.outcome import BLOCKS, MEASURES, change
from eldr_lab.steps.pools import Found
from eldr_lab.steps.traffic import LONGEST, SHORTEST, Traffic

PAGE = ROOT / "docs" / "benchmarks" / "policies.md"
FIGURES = ROOT / "docs" / "benchmarks" / "policies.json"
PICTURE = ROOT / "docs" / "images" / "policies.png"
NAMES = {
    "JSQ": "JSQ",
    "ELDR": "band",
    "MarginalUnion": "MarginalUnion",
    "MarginalUnion:prior=0.23": "MarginalUnion + prior",
}
_TIMES = ("TPOT mean", "TPOT P50", "TPOT P99")
Json = dict[str, Any]


def pool_json(found: Found) -> Json:
    """Return one comparison's figures; times in seconds, changes as shares with their 95 % intervals."""
    setting, law = found.setting, found.law
    first, *others = found.parts
    return {
        "engines": setting.engines,
        "batch": setting.batch,
        "requests": sum(len(block.tpot) for block in found.parts[first]),
        "traces": found.traces,
        "in_flight": "held" if setting.holds else "Poisson arrivals",
        "rate": None if setting.holds else found.rate,
        "policies": {
            name: {measure: value(parts) for measure, value in MEASURES.items()}
            for name, parts in found.parts.items()
        },
        "changes": {
            name: {measure: change(found.parts[first], found.parts[name], measure) for measure in MEASURES}
            for name in others
        },
        "predicted": {
            name: {
                "TPOT mean": fmean(one.tpot_mean for one in runs),
                "TPOT P50": fmean(one.tpot_p50 for one in runs),
                "TPOT P99": fmean(one.tpot_p99 for one in runs),
                "active experts": fmean(one.active_per_token for one in runs),
            }
            for name, runs in found.predicted.items()
        },
        "law": {
            "constants": law.constants,
            "intervals": law.intervals,
            "r2": law.r2,
            "r2_batch": law.r2_batch,
            "steps": law.steps,
        },
        "learned": {
            name: {
                "constants": (learned.fixed, learned.per_expert, learned.per_request),
                "expert_error": error,
                "fitted": found.laws[name].constants,
                "intervals": found.laws[name].intervals,
            }
            for name, (learned, error) in found.learned.items()
        },
    }


def as_json(pools: Sequence[Json], traffic: Traffic, dtype: str, factors: Sequence[float]) -> Json:
    """Return all that was found."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": cpu_model(),
        "dtype": dtype,
        "kinds": list(traffic.kinds),
        "prompts": len(traffic.prompts),
        "slowness": [float(value) for value in np.percentile(factors, [0, 50, 100])],
        "pools": list(pools),
    }


def table_rows(pool: Json) -> list[list[str]]:
    """Return a comparison as a table's head and rows."""
    order = ("active experts", "batch", *_TIMES, "tokens/s")
    rows = [["policy", "active experts", "batch", "TPOT mean, ms", "P50, ms", "P99, ms", "tokens/s"]]
    for name, values in pool["policies"].items():
        cells = {m: f"{1e3 * v:.2f}" if m in _TIMES else f"{v:.1f}" for m, v in values.items()}
        for measure, (mean, low, high) in pool["changes"].get(name, {}).items():
            cells[measure] += f" ({100 * mean:+.1f} %, {100 * low:+.1f} .. {100 * high:+.1f})"
        rows.append([NAMES.get(name, name), *(cells[measure] for measure in order)])
    return rows


def table(pool: Json) -> list[str]:
    """Return it in Markdown, line by line."""
    head, *rows = (f"| {' | '.join(cells)} |" for cells in table_rows(pool))
    return [head, "|" + "---|" * (head.count("|") - 1), *rows]


def page(results: Json) -> str:
    """Return the page."""
    slowest = results["slowness"][2] / results["slowness"][0]
    lines = [
        "# Placement on real engines",
        "",
        f"`make -C hack/lab bench-policies` on {results['date']}: vLLM 0.32 on a CPU ({results['machine']}), {results['dtype']}, the small trained model with experts of {WIDTH} units",
        "([steps of it follow their active experts](steps.md)). Real text of the kinds "
        + ", ".join(results["kinds"])
        + f"; {results['prompts']} prompts,",
        f"answers of {SHORTEST} to {LONGEST} tokens. All policies get the same requests at the same times. Every engine has a core to itself while it computes: engines take",
        "turns, each has a clock of its own that advances by the CPU time of its steps, and the pools of all policies advance together.",
        f"A step that is always the same is measured all the while; times are told at the machine's speed at the start (it changed by a factor of {slowest:.2f}).",
        "Policies, routers' unions and the law's learning are the router's own code (it learns every 2 s here, not every 10); centroids were fitted on other requests.",
        "",
        "In brackets: change against JSQ and its 95 % interval by bootstrap over pairs of blocks of the same requests,",
        f"{BLOCKS} of each of {results['pools'][0]['traces']} traces (draws of arrivals).",
        "Where batches crowd by chance, another trace may differ by more, above all in P99. Active experts: mean over the layers, as a generated token sees them.",
        "",
        "![Changes against JSQ](../images/policies.png)",
    ]
    for pool in results["pools"]:
        lines += ["", f"## {title(pool)}", "", *table(pool)]
        if pool["predicted"]:
            lines += ["", *_predictions(pool)]
    lines += ["", "## The law", "", *_laws(results["pools"])]
    return "\n".join([*lines, ""])


def title(pool: Json) -> str:
    """Return a comparison's name."""
    if pool["in_flight"] == "held":
        return f"{pool['engines']} engines, {pool['engines'] * pool['batch']} requests kept in flight"
    return f"{pool['engines']} engines, {pool['rate']:.1f} requests/s"


def _predictions(pool: Json) -> list[str]:
    rows = [
        "`eldr simulate`'s code on the same requests and arrivals, given what each request did when it ran alone and the law that the router's code learned:",
        "",
        "| policy | active experts, simulated | here | TPOT P50 against JSQ, simulated | here |",
        "|---|---|---|---|---|",
    ]
    first = next(iter(pool["policies"]))
    for name, told in pool["predicted"].items():
        real = pool["policies"][name]
        off = told["active experts"] / real["active experts"] - 1.0
        less = told["TPOT P50"] / pool["predicted"][first]["TPOT P50"] - 1.0
        own = real["TPOT P50"] / pool["policies"][first]["TPOT P50"] - 1.0
        rows.append(
            f"| {NAMES.get(name, name)} | {told['active experts']:.1f} ({100 * off:+.1f} %) | {real['active experts']:.1f} | {100 * less:+.1f} % | {100 * own:+.1f} % |"
        )
    return rows


def _laws(pools: Sequence[Json]) -> list[str]:
    rows = [
        "T = fixed + per expert x A + per request x B, of all steps but those beyond six median deviations:",
        "",
        "| pool | fit, ms | R² | of batch alone |",
        "|---|---|---|---|",
    ]
    for pool in pools:
        law = pool["law"]
        fixed, expert, request = (1e3 * constant for constant in law["constants"])
        rows.append(
            f"| {title(pool)} | {fixed:.1f} + {expert:.3f} A + {request:.3f} B | {law['r2']:.3f} | {law['r2_batch']:.3f} |"
        )
    rows += [
        "",
        (
            "What an expert costs, ms, by a fit of every step under one policy, with its 95 % interval, and as the router's code learned it from means over "
            "some seconds of the same steps, ± 2 standard errors. Where batch and experts vary together, neither tells them apart well:"
        ),
        "",
        "| pool | policy | fit | learned | |",
        "|---|---|---|---|---|",
    ]
    for pool in pools:
        for name, learned in pool["learned"].items():
            low, high = (1e3 * bound for bound in learned["intervals"][1])
            fitted, own, error = (
                1e3 * value
                for value in (learned["fitted"][1], learned["constants"][1], learned["expert_error"])
            )
            agree = own - 2 * error <= high and own + 2 * error >= low
            rows.append(
                f"| {title(pool)} | {NAMES.get(name, name)} | {fitted:.3f} ({low:.3f} .. {high:.3f}) | {own:.3f} (± {2 * error:.3f}) | "
                f"{'agree' if agree else '**apart**'} |"
            )
    return rows


def draw(results: Json) -> None:
    """Draw the changes against JSQ with their intervals, a panel a pool."""
    pools = results["pools"]
    measures = ("active experts", *_TIMES)
    figure = Figure(figsize=(4.2 * len(pools), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(1, len(pools), sharex=True, sharey=True))
    for axis, pool in zip(axes, pools, strict=True):
        for at, (name, changes) in enumerate(pool["changes"].items()):
            for row, measure in enumerate(measures):
                mean, low, high = (100 * value for value in changes[measure])
                y = row + 0.22 * (at - (len(pool["changes"]) - 1) / 2)
                axis.plot([low, high], [y, y], color=f"C{at + 1}", linewidth=2)
                axis.plot(
                    [mean], [y], "o", color=f"C{at + 1}", label=NAMES.get(name, name) if not row else None
                )
        axis.axvline(0, color="0.6", linewidth=1)
        axis.set(title=title(pool), xlabel="change against JSQ, %")
        axis.set_yticks(range(len(measures)), measures)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(PICTURE, dpi=120)
