"""Sections on first tokens, prefix caches, engines of several ranks, clusters, single steps, and throughput."""

from __future__ import annotations

from eldr_lab.evidence import prefilling, published
from eldr_lab.evidence.capacity import OBJECTIVE_RATE, gain, measured_gain
from eldr_lab.evidence.cells import (
    BALANCERS,
    BAND,
    JSQ,
    LOCALITY,
    MARGINAL,
    PRIOR,
    ROLLING,
    ROLLING_VANILLA,
    VANILLA,
    Cell,
)
from eldr_lab.evidence.markdown import section, table
from eldr_lab.evidence.names import model, place, policy
from eldr_lab.evidence.results import EXPERTS, FIRST_P50, FIRST_P99, MEAN, P50, P99, Results

_BRIEF = (BAND, MARGINAL, PRIOR)


def first_tokens(results: Results) -> str:
    """Return time to first token of every policy and rate."""
    shown = (*BALANCERS, "Domain", *LOCALITY)
    first = model(results.kinds("main")[0][0])
    text = (
        f"From arrival to the end of the first decode step, milliseconds, P50 / P99. {prefilling.ENGINES} prefill engines compute one prompt at a time. "
        "Each takes as long as reading every expert once by the step-time model, plus two operations per active parameter and token at "
        f"{prefilling.FLOPS / 1e12:.0f} TFLOP/s. Then a request waits for the running step of its decode engine and for its own. Policies change the last "
        "two parts only. (JSQ prefers an engine that a request has just left, at the end of a step. So its requests wait for a whole step a little more often "
        f"than round robin's.) The paper's first token leaves its prefill engine before any placement ({published.FIRST:.0f} ms for {first})."
    )
    parts = [
        text,
        *(f"![time to first token by rate, {workload}](images/evidence/first-{workload}.png)"
          for workload in dict.fromkeys(workload for _, workload in results.kinds("main"))),
    ]  # fmt: skip
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        rows = [
            (policy(name), *(" / ".join(f"{1e3 * results.mean(cell, name, measure):.0f}" for measure in (FIRST_P50, FIRST_P99)) for cell in cells),
             *(str(results.change(cells, name, JSQ, measure)) for measure in (FIRST_P50, FIRST_P99)))
            for name in shown
        ]  # fmt: skip
        head = (
            "policy",
            *(f"{cell.rate:.0f}/s" for cell in cells),
            "P50 against JSQ, %",
            "P99 against JSQ, %",
        )
        parts += [f"### {place(geometry, workload)}: first token", table(head, rows)]
    return section("Time to first token", *parts)


def prefix(results: Results) -> str:
    """Return what prefix caches change."""
    rows = []
    for cell in results.cells("prefix"):
        rows += [
            (f"{cell.workload}: {_cached(cell)}", policy(name), f"{1e3 * results.mean(cell, name, FIRST_P50):.0f} / {1e3 * results.mean(cell, name, FIRST_P99):.0f}",
             *(str(results.change([cell], name, JSQ, measure)) for measure in (P50, P99, EXPERTS)))
            for name in _BRIEF
        ]  # fmt: skip
    return section(
        "Prefix cache",
        f"{model(results.kinds('prefix')[0][0])} at 60 requests/s. A share of every prompt is found in the prefill engines' caches, by whole KV blocks, and takes no time there. "
        "Its tokens pass no layer, so no step counts their experts. *Known*: engines with the plug-in keep the counts beside each block, "
        "as the paper's engines do. *Lost*: without it, routers see only the computed tokens, though centroids are of whole prompts. Cached tokens use "
        "the same experts as the others here; one text before all prompts would say nothing either way. First token in milliseconds, the rest % against JSQ:",
        table(("where", "policy", "first token, P50 / P99", "P50", "P99", "experts per token"), rows),
    )


def _cached(cell: Cell) -> str:
    if not cell.cached:
        return "nothing cached"
    share = "all but the last block" if cell.cached == 1 else f"{100 * cell.cached:.0f} %"
    return f"{share} cached, counts {'known' if cell.counted else 'lost'}"


def clusters(results: Results) -> str:
    """Return balanced and plain K-means, kept and re-fitted."""
    rows = []
    for geometry, workload in results.kinds("clusters"):
        cells = results.cells("clusters", workload, geometry)
        for name, there in (
            (BAND, None),
            (VANILLA, None),
            (ROLLING, BAND),
            (ROLLING_VANILLA, VANILLA),
        ):
            theirs = [
                "" if there is None else f"{published.ablated(geometry, workload, there, quantile):+.1f}"
                for quantile in (0, 1)
            ]
            ours = [str(results.change(cells, name, "RoundRobin", measure)) for measure in (P50, P99)]
            rows.append((place(geometry, workload), policy(name), ours[0], theirs[0], ours[1], theirs[1]))
    return section(
        "Balanced and plain clusters",
        "60 requests/s, % against round robin. The artifact's band has two candidates at least. It refits its centroids every 2.5 s on the prompts of the "
        "last 5 s, with either K-means, so that a crowded cluster lasts for seconds. Its numbers stand beside ours that do the same. Kept for a whole run, "
        "plain clusters crowd engines to its end.",
        table(("where", "policy", "P50", "artifact", "P99", "artifact"), rows),
    )


def steps(results: Results) -> str:
    """Return expected unions beside those of single steps."""
    rows = []
    for workload in dict.fromkeys(cell.workload for cell in results.cells("steps")):
        cells = {cell.sampled: cell for cell in results.cells("steps", workload)}
        rows += [
            (workload, policy(name),
             *(str(results.change([cells[sampled]], name, JSQ, measure)) for measure in (MEAN, P50, P99) for sampled in (False, True)))
            for name in _BRIEF
        ]  # fmt: skip
    head = (
        "workload",
        "policy",
        *(f"{name}, {kind}" for name in ("mean", "P50", "P99") for kind in ("expected", "steps")),
    )
    return section(
        "Single steps",
        f"{model(results.kinds('steps')[0][0])} at 60 requests/s: everywhere else a step has the expected number of active experts; here beside it each step has those that it drew. % against JSQ:",
        table(head, rows),
    )


def throughput(results: Results) -> str:
    """Return throughput within an objective."""
    rows = []
    for geometry, workload in results.kinds("main"):
        for name in (*LOCALITY, ROLLING):
            far = name != ROLLING  # which was simulated at the published rates only
            ours = [
                str(gain(results, geometry, workload, name, measure, beyond=far)) for measure in (P50, P99)
            ]
            there = [
                measured_gain(geometry, workload, "ELDR", quantile) if name == ROLLING else None
                for quantile in (0, 1)
            ]
            theirs = ["" if one is None else str(one) for one in there]
            rows.append((place(geometry, workload), policy(name), ours[0], theirs[0], ours[1], theirs[1]))
    return section(
        "Throughput within a time per token",
        f"Requests per second within the time that JSQ keeps at {OBJECTIVE_RATE:.0f} requests/s, its P50 and its P99, % more than JSQ. Straight lines between "
        "simulated rates (20 to 120; the refit band to 100), *at least* where the highest one still keeps it. The artifact's times by the same rule. Where JSQ "
        "itself is quicker at 80 or 100 requests/s than at 60, as for Qwen3-30B and Gemma-4-26B, they say nothing on throughput. The paper has no such number.",
        table(("where", "policy", "by P50", "artifact", "by P99", "artifact"), rows),
    )
