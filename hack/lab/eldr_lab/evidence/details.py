"""Sections of single experiments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from eldr.simulate.step_times import STEP_TIMES as LAWS
from eldr_lab.evidence import claims, published, step_laws, sweeps
from eldr_lab.evidence.cells import (
    BAND,
    BOUNDED,
    FORMS,
    JSQ,
    LOCALITY,
    MAIN,
    MARGINAL,
    PRIOR,
    ROLLING,
    ROLLING_TAUS,
    SLOWER,
    TAUS,
    Cell,
)
from eldr_lab.evidence.forms import SKEWED, SKEWS
from eldr_lab.evidence.markdown import listed, section, table
from eldr_lab.evidence.names import model, place, policy
from eldr_lab.evidence.results import EXPERTS, MEAN, P50, P99, STEP_EXPERTS, Results

_CHANGES = (MEAN, P50, P99, STEP_EXPERTS)
_HEAD = ("mean", "P50", "P99", "experts per step")


def times(results: Results) -> str:
    """Return time per token of every policy and rate."""
    text = (
        "Time per output token, milliseconds, P50 / P99. In brackets: what the artifact measured. Its band adds a second candidate and "
        f"refits its centroids all the time, so its numbers stand beside *{policy(ROLLING)}*."
    )
    parts = [text]
    parts += [
        f"![time per token by rate, {workload}](images/evidence/{stem}-{workload}.png)"
        for workload in dict.fromkeys(workload for _, workload in results.kinds("main"))
        for stem in ("rates", "changes")
    ]
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        rows = [(policy(name), *(_pair(results, cell, name) for cell in cells)) for name in MAIN]
        parts.append(f"### {place(geometry, workload)}")
        parts.append(table(("policy", *(f"{cell.rate:.0f} requests/s" for cell in cells)), rows))
    return section("Time per token", *parts)


def _pair(results: Results, cell: Cell, name: str) -> str:
    text = f"{1e3 * results.mean(cell, name, P50):.1f} / {1e3 * results.mean(cell, name, P99):.1f}"
    beside = {BAND: None, ROLLING: "ELDR"}.get(name, name)
    known = published.measured().get((cell.geometry, cell.workload, str(beside), cell.rate))
    return text if known is None else f"{text} ({known.p50:.1f} / {known.p99:.1f})"


def experts(results: Results) -> str:
    """Return active experts against round robin."""
    rows = []
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        for name in LOCALITY:
            found = [
                str(results.change(cells, name, "RoundRobin", measure)) for measure in (STEP_EXPERTS, EXPERTS)
            ]
            rows.append((place(geometry, workload), policy(name), *found))
    return section(
        "Active experts",
        "Distinct experts per layer against round robin, %, mean over the rates: of a step, as the paper counts, and of the steps that a "
        "generated token sees. A policy cannot lower the latter by leaving engines empty.",
        "![active experts by rate](images/evidence/experts.png)",
        table(("where", "policy", "of a step", "of a token"), rows),
    )


def marginal(results: Results) -> str:
    """Return MarginalUnion against the band, cell by cell."""
    text = (
        f"Percent against the band under the same requests. P50 is *not worse* up to {claims.NOT_WORSE} %; P99 should be *better*. "
        f"A verdict *holds* if all of the interval agrees, does not if none of it does, and is undecided otherwise, over {len(results.plan.more or results.plan.seeds)} seeds."
    )
    parts = [text]
    found = {name: claims.duels(results, name) for name in (MARGINAL, PRIOR)}
    for name, cells in found.items():
        middle, tail = claims.count([one[2] for one in cells]), claims.count([one[4] for one in cells])
        pooled = [
            str(results.change(results.cells("main"), name, baseline, measure))
            for baseline in (BAND, BOUNDED)
            for measure in (P50, P99)
        ]
        parts.append(
            f"{policy(name)}: P50 not worse {middle}; P99 better {tail}. Over all cells P50 {pooled[0]} %, P99 {pooled[1]} %; against the bounded band {pooled[2]} % and {pooled[3]} %."
        )
    pools = [
        (place(geometry, workload), *(str(results.change(results.cells("main", workload, geometry), name, BAND, measure))
                                      for name in found for measure in (P50, P99)))
        for geometry, workload in results.kinds("main")
    ]  # fmt: skip
    rows = [
        (
            f"{place(plain[0].geometry, plain[0].workload)}, {plain[0].rate:.0f}/s",
            *(
                cell
                for one in (plain, prior)
                for cell in (str(one[1]), one[2].value, str(one[3]), one[4].value)
            ),
        )
        for plain, prior in zip(found[MARGINAL], found[PRIOR], strict=True)
    ]
    short = ("P50", "not worse", "P99", "better")
    head = ("where", *(f"{title} {text}" for title in ("no prior:", "prior:") for text in short))
    head_pools = ("mean over the rates", "no prior: P50", "no prior: P99", "prior: P50", "prior: P99")
    return section(
        "MarginalUnion against the band", *parts, table(head_pools, pools), "Cell by cell:", table(head, rows)
    )


def changes(
    results: Results, experiment: str, title: str, text: str, names: Sequence[str], *, picture: bool = False
) -> str:
    """Return an experiment's policies against JSQ."""
    rows = []
    for cell in results.cells(experiment):
        where = f"{cell.workload}, {cell.rate:.0f}/s" + _besides(cell, experiment)
        for name in names:
            found = [str(results.change([cell], name, JSQ, measure)) for measure in _CHANGES]
            rows.append((where, policy(name), *found))
    shown = [f"![{title}](images/evidence/{experiment}.png)"] if picture else []
    return section(title, text, *shown, table(("where", "policy", *_HEAD), rows))


def _besides(cell: Cell, experiment: str) -> str:
    """Say what tells an experiment's cells apart, beside workload and rate."""
    if experiment == "pool":
        return f", {cell.engines} engines"
    if experiment == "routers":
        lag = f"every {cell.lag:g} s" if cell.lag < math.inf else "never"
        return f", {cell.routers} routers, {lag}"
    return ""


def signatures(results: Results) -> str:
    """Return rho and time per token by form of signature."""
    kinds = results.kinds("main")
    rows = []
    for name in FORMS:
        known = published.RHO.get(name)
        rows.append((
            name.replace("_", " x "), *(results.fact(*kind, f"rho {name}").text(".3f", ".3f") for kind in kinds),
            "" if known is None else f"{known:.2f} (mean)",
        ))  # fmt: skip
    runs = [
        (cell.workload, cell.form.replace("_", " x "), *(str(results.change([cell], BAND, JSQ, measure)) for measure in _CHANGES))
        for cell in results.cells("signature")
    ]  # fmt: skip
    correlation = [
        (place(*kind), *(results.fact(*kind, f"correlation of {name}").text(".2f", ".2f") for name in ("kinds", "requests")))
        for kind in kinds
    ]  # fmt: skip
    skews = [
        (place(*kind), *(str(results.fact(*kind, name)) for name in (*(f"skew {percent}" for percent in SKEWS), f"union {SKEWED}")))
        for kind in kinds
    ]  # fmt: skip
    return section(
        "Signatures",
        "Spearman's rho between distances of signatures and of decode-time activations, layers chosen greedily for each form:",
        "![rho by form](images/evidence/forms.png)",
        table(("form", *(place(*kind) for kind in kinds), "paper"), rows),
        f"What that is worth: the band with centroids of each form, 60 requests/s, {place(*kinds[0]).split(',')[0]}, % against JSQ:",
        table(("workload", "form", *_HEAD), runs),
        "Pearson's correlation of an expert's use by prompts and by decode steps, pooled by kind and of single requests:",
        table(("where", "pooled by kind", "single requests"), correlation),
        f"Experts of a batch of {SKEWED} by its share of one kind (the rest is of all kinds), % against a mixed batch. We know no "
        "numbers of the paper's Figure 5:",
        table(("where", *(f"{percent} %" for percent in SKEWS), "100 %"), skews),
    )


def taus(results: Results) -> str:
    """Return the sweep of the band's width."""
    rows = []
    for geometry, workload in results.kinds("tau"):
        cells = results.cells("tau", workload, geometry)
        for tau in TAUS:
            shown = [place(geometry, workload), tau]
            for quantile, measure in enumerate((P50, P99)):
                shown.append(str(results.change(cells, f"ELDR:tau={tau}", JSQ, measure)))
                if tau in ROLLING_TAUS:
                    shown.append(str(sweeps.swept(results, geometry, workload, tau, measure)))
                    shown.append(f"{published.swept(geometry, workload, tau, quantile):+.1f}")
                else:
                    shown += ["", ""]
            rows.append(shown)
    return section(
        "Width of the band",
        "60 requests/s; ours against JSQ, with fixed centroids and one candidate allowed. *refit*, with two candidates, and the artifact's band, which is that, are "
        f"against round robin, %. They have rows in [Published numbers](reproduction.md), but for tau = {sweeps.REPEATED}: that was measured beside plain K-means, too.",
        "![P50 and P99 by tau](images/evidence/tau.png)",
        table(("where", "tau", "P50", "refit", "artifact", "P99", "refit", "artifact"), rows),
    )


def laws(results: Results) -> str:
    """Return the laws, fitted anew, beside those that are used, and the times that simulated round robin has."""
    rows = []
    for geometry in dict.fromkeys(geometry for geometry, _ in results.kinds("main")):
        fitted, used = step_laws.fit(geometry), LAWS[f"{geometry}-mi300x"]
        layers, known = step_laws.LAYERS[geometry], step_laws.points(geometry)
        cells = results.cells("main", step_laws.WORKLOAD, geometry)
        simulated = _row(1e3 * results.mean(cell, "RoundRobin", P50) for cell in cells)
        for name, law, measured in (("used", used, simulated), ("least squares", fitted.law, "")):
            b = law.per_expert / layers
            t0 = law.fixed - layers * b * step_laws.OVERHEAD
            points = step_laws.at_points(law, known)
            rows.append((
                model(geometry), name, f"{abs(1e3 * t0):.2f}", f"{1e6 * b:.2f}", f"{1e6 * law.per_request:.1f}",
                _row(ours for _, ours, _ in points), measured, _row(there for _, _, there in points),
            ))  # fmt: skip
    factors = listed([f"{model(name)} {factor:g}" for name, factor in results.plan.factors.items()])
    return section(
        "Step-time models",
        "`T = t0 + layers * b * (a0 + A) + c1 * B`, by non-negative least squares from the artifact's five round-robin P50 of the task workload. "
        f"`a0` = {step_laws.OVERHEAD:.2f} experts is not fitted. Program: `hack/lab/eldr_lab/evidence/step_laws.py`, points: `published.csv` beside it.",
        "*Its times* are what the model gives for the batch that the published time implies, and for the experts of a workload whose preferences for kinds are not weakened (strength 1). "
        f"*Simulated* is P50 of round robin as the pools here have it, task: with preferences weakened by each model's factor ({factors or 'none'}) and the batch that follows.",
        table(
            (
                "model",
                "step time",
                "t0, ms",
                "b, us",
                "c1, us",
                "its times, ms",
                "simulated, ms",
                "published, ms",
            ),
            rows,
        ),
        "Qwen3-30B's and Gemma's published times do not rise steadily with the load: 60 requests/s are slower than 100. Five such points do not "
        "settle three constants. The model that is used for Qwen3-30B keeps a cost per request, from the size of its KV cache, and overstates 20 and "
        "100 requests/s. The section below shows what the other one changes.",
    )


def _row(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def slower() -> str:
    """Return how uneven pools are, in words."""
    return f"every second engine takes {SLOWER} times as long"
