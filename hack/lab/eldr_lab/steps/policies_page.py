"""What the comparison of policies on real engines looks like: page and picture. Nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from eldr_bench.machine import ROOT
from eldr_lab.steps.machine import WIDTH
from eldr_lab.steps.policies_figures import LEAST, NAMES, TIMES, measured, title
from eldr_lab.steps.traffic import LONGEST, SHORTEST

PAGE = ROOT / "docs" / "benchmarks" / "policies.md"
PICTURE = ROOT / "docs" / "images" / "policies.png"
Json = dict[str, Any]
_BUSY = 2.0
"""How much slower its slowest moments were than its fastest ones, where other programs had the caches: idle, 1.6 at most."""


def table_rows(pool: Json) -> list[list[str]]:
    """Return a pool's figures as a table's head and rows."""
    order = ("active experts", "batch", *TIMES, "tokens/s")
    rows = [["policy", "active experts", "batch", "TPOT mean, ms", "P50, ms", "P99, ms", "tokens/s"]]
    for name, values in pool["policies"].items():
        cells = {m: f"{1e3 * v:.2f}" if m in TIMES else f"{v:.1f}" for m, v in values.items()}
        for measure, change in pool["changes"].get(name, {}).items():
            cells[measure] += f" ({_percent(*change)})"
        rows.append([NAMES.get(name, name), *(cells[measure] for measure in order)])
    return rows


def verdict_rows(results: Json) -> list[list[str]]:
    """Return what the intervals of times say, as a table's head and rows."""
    rows = [[one.pool, one.policy, *(one.verdict(measure) for measure in TIMES)] for one in measured(results)]
    return [["pool", "policy", *TIMES], *rows]


def page(results: Json) -> str:
    """Return the page."""
    fastest, slowest = results["slowness"]
    few = results["traces"] < LEAST
    busy = slowest > _BUSY * fastest
    lines = [
        "# Placement on real engines",
        "",
        *([f"**Of {results['traces']} of {LEAST} traces: too few to call a policy better or worse.**", ""] if few else []),
        *(["**A busy machine**: other programs had a part of its caches, so that steps depended less on their experts than on an idle one.", ""] if busy else []),
        f"`make -C hack/lab bench-policies` on {', '.join(results['dates'])}, {', '.join(results['commits'])}: vLLM {results['vllm']} on a CPU ({results['machine']}), {results['dtype']}.",
        f"The small trained model has experts of {WIDTH} units ([its steps follow their active experts](steps.md)).",
        f"Real text of the kinds {', '.join(results['kinds'])}; {results['prompts']} prompts, answers of {SHORTEST} to {LONGEST} tokens.",
        "",
        "- All policies get the same requests at the same times.",
        "- Every engine has a core to itself while it computes. Engines take turns; each has a clock that advances by the CPU time of its steps. The pools of all policies advance together.",
        f"- A step that is always the same is measured alongside. Times are given at the speed at which it takes {1e3 * results['reference']:.1f} ms; the machine was {fastest:.2f} to {slowest:.2f} times as slow.",
        "- Policies, unions and the learning of the step-time model are the router's own code. It learns every 2 s here, not every 10. Each trace begins with what was learned from batches of all kinds of text.",
        "- Each policy proves its row: every decision follows its rule, every measured request is answered in full, and every step reports its experts in all layers.",
        "- *prior*: centroids fitted to other prompts of the same kinds. *learned prior*: the router learns it while it places, as it does without a centroid set; it knows nothing before a trace begins, and its first decision rests on unions alone.",
        "",
        "In brackets: change against JSQ, mean over traces ± half of the 95 % interval (Student's t over traces, each paired with JSQ's same trace).",
        "A trace is a draw of arrivals and of the fit of centroids. Prompts, model and machine are the same in all.",
        f"P99 rests on {_span([n for pool in results['pools'] for n in pool['requests']])} requests of each trace, and so on the slowest one or two. Active experts: mean over the layers, as a generated token sees them.",
        "",
        *_table(verdict_rows(results)),
        "",
        "Chance alone makes one such verdict in twenty.",
        "",
        "![Changes against JSQ](../images/policies.png)",
    ]  # fmt: skip
    for pool in results["pools"]:
        lines += [
            "",
            f"## {title(pool)}",
            "",
            f"Traces: {len(pool['traces'])}.",
            "",
            *_table(table_rows(pool)),
        ]
        lines += ["", *_proofs(pool)]
        if pool["predicted"]:
            lines += ["", *_predictions(pool)]
    lines += ["", "## The step-time model", "", *_laws(results["pools"], results["batches"])]
    return "\n".join([*lines, ""])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = (f"| {' | '.join(cells)} |" for cells in rows)
    return [head, "|" + "---|" * len(rows[0]), *rest]


def _percent(mean: float, half: float | None) -> str:
    return f"{mean:+.1f} %" if half is None else f"{mean:+.1f} ±{half:.1f} %"


def _ms(mean: float, half: float | None) -> str:
    return f"{1e3 * mean:.3f}" if half is None else f"{1e3 * mean:.3f} ±{1e3 * half:.3f}"


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}"


def _proofs(pool: Json) -> list[str]:
    rows = [
        [
            "policy",
            "every decision rests on",
            "decisions",
            "JSQ decides otherwise",
            "requests answered",
            "their tokens",
        ]
    ]
    for name, proof in pool["proofs"].items():
        counts = (proof[part] for part in ("decisions", "unlike", "answered", "tokens"))
        rows.append([NAMES.get(name, name), proof["reason"], *map(str, counts)])
    return _table(rows)  # fmt: skip


def _predictions(pool: Json) -> list[str]:
    first = next(iter(pool["policies"]))
    rows = [["policy", "active experts, simulated", "here", "TPOT P50 against JSQ, simulated", "here"]]
    for name, told in pool["predicted"].items():
        real = pool["policies"][name]["active experts"]
        less, own = told["TPOT P50"], [0.0, None] if name == first else pool["changes"][name]["TPOT P50"]
        cells = ["", ""] if name == first else [_percent(*less), _percent(*own)]
        off = 100 * (told["active experts"] / real - 1.0)
        rows.append(
            [NAMES.get(name, name), f"{told['active experts']:.1f} ({off:+.1f} %)", f"{real:.1f}", *cells]
        )
    return [
        "`eldr simulate`'s code on the same requests and arrivals. It is given what each request did alone, and the step-time model that the router's code learned.",
        "",
        *_table(rows),
    ]  # fmt: skip


def _laws(pools: Sequence[Json], batches: Json) -> list[str]:
    batch_expert = batches["constants"][1]
    half_widths = [(high - low) / 2 for low, high in batches["intervals"]]
    whole = [["", "fixed, ms", "per active expert, ms", "", "per request, ms", "R²", "of batch alone"]]
    whole.append(
        _law("batches of bench-steps", list(zip(batches["constants"], half_widths, strict=True)), "", batches)
    )
    own = [["pool", "policy", "fit, ms", "learned, ms", "difference, ms", ""]]
    for pool in pools:
        law = pool["law"]
        off = 100 * (law["constants"][1][0] / batch_expert - 1)
        whole.append(_law(title(pool), law["constants"], f"{off:+.1f} %", law))
        for name, learned in pool["learned"].items():
            above, half = learned["above_fit"]
            agree = "one trace" if half is None else "agree" if abs(above) <= half else "**apart**"
            own.append(
                [
                    title(pool),
                    NAMES.get(name, name),
                    _ms(*pool["laws"][name]["constants"][1]),
                    _ms(*learned["per_expert"]),
                    _ms(above, half),
                    agree,
                ]
            )
    return [
        "T = fixed + per expert x A + per request x B, fitted trace by trace to all steps but those beyond six median deviations.",
        "Mean over traces ± half of the 95 % interval; of the batches that [steps](steps.md) describes, by bootstrap over batches.",
        "",
        *_table(whole),
        "",
        "All rows are given at one speed and come from one machine. The percentage is the difference between the pools' cost of an expert and that of the batches.",
        "On pages of different sessions it differs by more, as the speed of the machine does.",
        "",
        "What an expert costs by a fit of every step under one policy, and as the router's code learned it from means over some seconds of the same steps.",
        "Where batch and experts vary together, neither separates them well:",
        "",
        *_table(own),
    ]  # fmt: skip


def _law(name: str, constants: Sequence[Sequence[float]], off: str, law: Json) -> list[str]:
    fixed, expert, request = (_ms(*constant) for constant in constants)
    return [name, fixed, expert, off, request, f"{law['r2']:.3f}", f"{law['r2_batch']:.3f}"]


def draw(results: Json) -> None:
    """Draw the changes against JSQ with their intervals, a panel a pool."""
    pools = results["pools"]
    figure = Figure(figsize=(4.2 * len(pools), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(1, len(pools), sharex=True, sharey=True))
    shown = ("active experts", *TIMES)
    for axis, pool in zip(axes, pools, strict=True):
        for at, (name, changes) in enumerate(pool["changes"].items()):
            for row, measure in enumerate(shown):
                mean, half = changes[measure]
                y = row + 0.22 * (at - (len(pool["changes"]) - 1) / 2)
                axis.errorbar(
                    mean,
                    y,
                    xerr=half or 0.0,
                    fmt="o",
                    color=f"C{at + 1}",
                    linewidth=2,
                    label=NAMES.get(name, name) if not row else None,
                )
        axis.axvline(0, color="0.6", linewidth=1)
        axis.set(title=title(pool), xlabel=f"change against JSQ, %, {len(pool['traces'])} traces")
        axis.set_yticks(range(len(shown)), shown)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(PICTURE, dpi=120)
