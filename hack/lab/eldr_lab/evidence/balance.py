"""Expert-parallel engines whose step waits for the fullest rank, in tables."""

from __future__ import annotations

import numpy as np

from eldr_lab.evidence import published
from eldr_lab.evidence.balance_results import (
    EXACT,
    GREEDY,
    NONE,
    OURS,
    VLLM,
    Found,
    Fullest,
    by_layout,
    layout_change,
    layout_time,
)
from eldr_lab.evidence.balance_study import (
    BATCHES,
    COLLECTIVE,
    DECISION,
    EAGER,
    EAGER_LAUNCH,
    HIDDEN,
    KERNELS,
    LAUNCH,
    LEAST,
    LOOKUP,
    MODELS,
    MOST,
)
from eldr_lab.evidence.intervals import interval
from eldr_lab.evidence.layouts import ACTIVATIONS, ALIKE, DEALT, IN_ORDER, TOKENS
from eldr_lab.evidence.markdown import section, table
from eldr_lab.evidence.names import model, policy
from eldr_lab.pool.models import GEOMETRIES

_SHOWN = (16, 64, 256)
_FLAG = 4
"""Bytes of each expert in the sum that tells all ranks which are active."""


def text(found: Found | None) -> str:
    """Return the section."""
    title = "Engines of several ranks with replicas"
    if found is None:
        return section(title, "`make -C hack/lab bench-balance` has not been run.")
    fullest = Fullest(found)
    return section(
        title,
        f"A step waits for the rank that activates most experts, so the choice of replicas decides how long it takes (METRO, arXiv 2512.09277). {len(fullest.seeds)} seeds of the task "
        "workload, mixed batches, single steps: Qwen3-30B and DeepSeek-V3 on 8 ranks, Qwen3-235B on 4. *None*: no replicas. *vLLM*: replicas placed by tokens as "
        "EPLB does, chosen by vLLM's hash of the token's index. *METRO*: the same replicas, each active expert on one rank, greedily or exactly; and exactly with replicas "
        "placed by activation. vLLM's index is that of all the engine's tokens if ranks have the same ones (Qwen3-235B, captured activations). Ranks with requests of their own (the others) each count theirs from 0. "
        "Experts of the fullest rank:",
        _experts(fullest),
        f"**What it costs.** An exchange is {KERNELS} kernels, a small sum over the ranks and the decision, on each layer; the kernels are counted by a test. Assumed: {_micros(LAUNCH)} us to start a kernel "
        f"of a graph, {_micros(COLLECTIVE)} us for the sum. The decision takes {_micros(DECISION)} us in the paper. Ours takes [23 to 26 us](../benchmarks/gpu-kernels.md) on an H200 with all kernels of an exchange but the sum. Together {_micros((LEAST, MOST))} us, and up to "
        f"{1e6 * EAGER:.0f} us without graphs, where a kernel may take {1e6 * EAGER_LAUNCH:.0f} us to start. Microseconds that a layer saves before that is paid, then the change of a step's time at either end of the range, "
        "%, replicas placed by activation:",
        _break_even(fullest),
        _loses(fullest),
        "**ELDR across engines, METRO inside.** Batches have 32 requests, of all kinds or of one (what a perfect router would give an engine). There are 1.25 physical experts per expert, placed by what the "
        "engine's own requests use. Fullest rank, % against mixed batches without replicas; *product*: what the two alone would give together:",
        _together(found),
        "The same in a pool: Qwen3-235B on 8 engines of 4 ranks at one rate, the router's own policies, % against JSQ without replicas. METRO pays the least and, *dear*, the most that an exchange may take:",
        _pool(found),
        "**Without replicas.** The placement of experts matters, too: batches of one kind of requests, as an engine of an ELDR pool has, on ranks that hold as many experts each. *In order*: as vLLM starts. "
        "*Dealt*: ELDR's layout for the cluster of an engine, the hottest to one rank after the other. *Tokens*, *activations*: as EPLB moves them, by its own weights and by how often a step uses an expert. "
        "*Alike*: by activations, for the requests of all kinds at once. Layouts are made from half of the requests and met by the others. Fullest rank, % against in order. The last two columns give the change of a step's time with the layout *activations*. "
        f"Once EPLB moves experts vLLM looks up places: a kernel on each layer, {_micros(LOOKUP)} us assumed. The captured activations have no step times. No engine does it: {_unearned(found)}",
        _layouts(found),
        f"**What ranks tell each other.** Ranks with requests of their own must know what the others use. METRO's paper gathers all tokens before they choose experts. A single sum of {_FLAG} bytes "
        f"per expert tells the ranks just as much. Bytes that a rank receives on each layer, and their time on the wire at {published.METRO_BANDWIDTH / 1e9:.0f} GB/s. A collective's start, "
        "some ten microseconds, takes longer than any of it:",
        _collectives(),
    )


def take(found: Found) -> str:
    """Return what to take from it, in a few sentences."""
    fullest = Fullest(found)
    cells = [(name, batch, ratio) for name in MODELS for batch in BATCHES for ratio in fullest.ratios]
    worse = [fullest.change(*cell, VLLM, NONE).mean for cell in cells]
    chosen = [fullest.change(*cell, EXACT, VLLM).mean for cell in cells]
    won = {
        other: [
            sum(fullest.slower(*cell, OURS, other, exchange).high < 0 for cell in cells)
            for exchange in (LEAST, MOST)
        ]
        for other in (NONE, VLLM)
    }
    together = [
        f"{_population(name)}, {ranks} ranks: {interval(changes['one kind, metro'])} % ({interval(changes['product'])})"
        for (name, ranks), changes in _meetings(found).items()
    ]
    return (
        f"Engines of several ranks: replicas placed and chosen by tokens put {min(worse):+.0f} to {max(worse):+.0f} % more experts on the fullest rank than no replicas. "
        f"METRO's choice of the same ones changes that by {max(chosen):+.0f} to {min(chosen):+.0f} %. Against no replicas it shortens steps in {won[NONE][0]} of {len(cells)} settings where an exchange takes "
        f"{1e6 * LEAST:.0f} us a layer, and in {won[NONE][1]} where it takes {1e6 * MOST:.0f}: expect a loss; no redundant experts stay the default. Against vLLM's choice of the same replicas it does in "
        f"{won[VLLM][0]} and {won[VLLM][1]}. Fullest ranks with placement across engines and METRO inside, before that is paid, and in brackets what the two alone would give together. {'. '.join(together)}."
    )


def _experts(fullest: Fullest) -> str:
    head = (
        "model",
        "batch",
        "physical per expert",
        "none",
        "vLLM",
        "METRO greedy",
        "exact",
        "exact, by activation",
        "exact / vLLM, %",
        "by activation / none, %",
    )
    lines = []
    for name in MODELS:
        for batch in BATCHES:
            for ratio in (fullest.ratios[0], fullest.ratios[-1]):
                means = [
                    f"{np.mean(fullest.values(name, batch, ratio, choice)):.2f}"
                    for choice in (NONE, VLLM, GREEDY, EXACT, OURS)
                ]
                changes = [
                    str(fullest.change(name, batch, ratio, one, other))
                    for one, other in ((EXACT, VLLM), (OURS, NONE))
                ]
                lines.append((model(name), str(batch), f"{ratio:g}", *means, *changes))
    return table(head, lines)


def _micros(seconds: tuple[float, float]) -> str:
    least, most = (f"{1e6 * one:.0f}" for one in seconds)
    return f"{least} to {most}"


def _break_even(fullest: Fullest) -> str:
    costs = [f"{1e6 * one:.0f} us" for one in (LEAST, MOST)]
    head = (
        "model",
        "batch",
        "physical per expert",
        "saved against none, us a layer",
        "against vLLM",
        *(f"TPOT against {other}, {cost}" for other in ("none", "vLLM") for cost in costs),
    )
    lines = []
    for name in MODELS:
        for batch in _SHOWN:
            for ratio in (fullest.ratios[0], fullest.ratios[-1]):
                saved = [
                    fullest.saved(name, batch, ratio, OURS, other).text(".1f", ".1f")
                    for other in (NONE, VLLM)
                ]
                times = [
                    str(fullest.slower(name, batch, ratio, OURS, other, exchange))
                    for other in (NONE, VLLM)
                    for exchange in (LEAST, MOST)
                ]
                lines.append((model(name), str(batch), f"{ratio:g}", *saved, *times))
    return table(head, lines)


def _loses(fullest: Fullest) -> str:
    """Return in how many cells METRO shortens and lengthens steps."""
    lines = []
    for name in MODELS:
        for other, against in ((NONE, "no replicas"), (VLLM, "vLLM's choice")):
            told = []
            for exchange in (LEAST, MOST, EAGER):
                every = [
                    fullest.slower(name, batch, ratio, OURS, other, exchange)
                    for batch in BATCHES
                    for ratio in fullest.ratios
                ]
                lost, won = sum(one.low > 0 for one in every), sum(one.high < 0 for one in every)
                told.append(f"{won} / {lost} of {len(every)}")
            lines.append((model(name), against, *told))
    head = ("model", "against", *(f"{1e6 * one:.0f} us" for one in (LEAST, MOST, EAGER)))
    return (
        "**Expect a loss against no replicas.** Settings, over all batches and replications, in which METRO's steps are significantly shorter / longer. "
        "Zero redundant experts are the default of decode pools:\n\n" + table(head, lines)
    )


def _meetings(found: Found) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Return changes of the fullest rank against mixed batches without replicas, by model and ranks: percent, by seed."""
    every = {}
    for key in dict.fromkeys((one["name"], one["ranks"]) for one in found["meeting"]):
        seeds = [one["fullest"] for one in found["meeting"] if (one["name"], one["ranks"]) == key]
        changes = {
            choice: [100 * (one[choice] / one["mixed, none"] - 1) for one in seeds]
            for choice in ("one kind, none", "mixed, metro", "one kind, metro", "mixed, vllm")
        }
        pairs = zip(changes["one kind, none"], changes["mixed, metro"], strict=True)
        changes["product"] = [100 * ((1 + a / 100) * (1 + b / 100) - 1) for a, b in pairs]
        changes["experts"] = [one["mixed, none"] for one in seeds]
        every[key] = changes
    return every


def _population(name: str) -> str:
    return "captured activations" if name == "captured" else model(name)


def _together(found: Found) -> str:
    head = (
        "model",
        "ranks",
        "mixed, none",
        "one kind, none",
        "mixed, METRO",
        "both",
        "product",
        "mixed, vLLM",
    )
    lines = []
    for (name, ranks), changes in _meetings(found).items():
        columns = ("one kind, none", "mixed, metro", "one kind, metro", "product", "mixed, vllm")
        cells = (str(interval(changes[choice])) for choice in columns)
        lines.append((_population(name), str(ranks), f"{np.mean(changes['experts']):.2f}", *cells))
    return table(head, lines)


def _layouts(found: Found) -> str:
    columns = (DEALT, TOKENS, ACTIVATIONS, ALIKE)
    lines = []
    for (name, ranks, batch), seeds in by_layout(found).items():
        cells = (str(layout_change(seeds, layout)) for layout in columns)
        experts = float(np.mean([one[IN_ORDER] for one in seeds]))
        times = [str(layout_time(name, batch, seeds, one)) if name in MODELS else "" for one in LOOKUP]
        lines.append((_population(name), str(ranks), str(batch), f"{experts:.2f}", *cells, *times))
    head = ("model", "ranks", "batch", "in order", *columns, *(f"time, {1e6 * one:.0f} us" for one in LOOKUP))
    return table(head, lines)


def _unearned(found: Found) -> str:
    """Return what a layout by activation brings to the models that the plug-in takes, vLLM's Qwen3-MoE."""
    taken = {key: seeds for key, seeds in by_layout(found).items() if key[0].startswith("qwen3")}
    won = [
        sum(layout_time(name, batch, seeds, one).high < 0 for (name, _, batch), seeds in taken.items())
        for one in LOOKUP
    ]
    return f"of the {len(taken)} settings of models that could be served so, Qwen3-MoE, steps get significantly shorter in {won[0]} and {won[1]}:"


def _pool(found: Found) -> str:
    runs = found["pools"]
    measured = {(one["choice"], one["policy"], one["seed"]): one for one in runs}
    seeds = list(dict.fromkeys(one["seed"] for one in runs))
    policies = list(dict.fromkeys(one["policy"] for one in runs))
    names = {"none": "none", "vllm": "vLLM, 1.25", "metro": "METRO, 1.25", "metro, dear": "METRO, 1.25, dear"}
    lines = []
    for choice, told in names.items():
        for name in policies:
            cells = []
            for measure in ("tpot_p50", "tpot_mean", "fullest"):
                changes = [
                    100
                    * (
                        measured[choice, name, seed][measure] / measured["none", policies[0], seed][measure]
                        - 1
                    )
                    for seed in seeds
                ]
                cells.append(str(interval(changes)))
            lines.append((told, policy(name), *cells))
    return table(("replicas", "policy", "P50", "mean", "experts of the fullest rank per token"), lines)


def _collectives() -> str:
    head = (
        "model",
        "ranks",
        "batch",
        "all-to-all, KB",
        "all-gather, KB",
        "sum of active experts, KB",
        "us, in this order",
    )
    lines = []
    for name, ours in MODELS.items():
        shape = GEOMETRIES[name]
        for batch in (64, 512):
            state = batch * 2 * HIDDEN[name]
            # a rank receives a token once for all its experts: as likely as one of its experts is chosen
            chosen = 1 - (1 - 1 / ours.ranks) ** shape.top_k
            sizes = (state * chosen, float(state), float(_FLAG * shape.n_experts))
            micros = " / ".join(f"{1e6 * size / published.METRO_BANDWIDTH:.3f}" for size in sizes)
            lines.append(
                (model(name), str(ours.ranks), str(batch), *(f"{size / 1024:.1f}" for size in sizes), micros)
            )
    return table(head, lines)
