"""The pages: the first one, and an appendix by subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eldr_lab.evidence import (
    advice,
    claims,
    details,
    errors,
    published,
    routing,
    sections,
)
from eldr_lab.evidence.cells import (
    BAND,
    BLIND,
    BOUNDED,
    CEILING,
    DRIFT_AT,
    JSQ,
    LOCALITY,
    MARGINAL,
    PRIOR,
    ROLLING,
    ROLLING_PRIOR,
)
from eldr_lab.evidence.markdown import listed, section, table
from eldr_lab.evidence.names import model, place, policy
from eldr_lab.evidence.opening import opening
from eldr_lab.evidence.reproduction import pooled, rows
from eldr_lab.evidence.results import MEAN, P50, P99, Results
from eldr_lab.evidence.rows import Row
from eldr_lab.evidence.strengths import Tuned
from eldr_lab.evidence.verdicts import LEAST, SHARE, Holds
from eldr_lab.steps.policies_figures import Measured

FIRST = "evidence.md"
FOLDER = "evidence"
_LAB = "No user can run *refit* (the artifact fits centroids anew every 2.5 s), *plain K-means*, *blind* or the *ceiling*: they exist here only. The same holds for signatures other than counts and counts x idf."
_UNTOUCHED = ("gpt-oss-120b", "language")
_APPENDIX = {
    "reproduction.md": ("Published numbers", "each published number beside ours, with a verdict; what is missing"),
    "default.md": ("The default policy", "how it was chosen; MarginalUnion against the band; the ceiling, cell by cell"),
    "times.md": ("Time per token", "every policy, rate, model and workload; first tokens; active experts; throughput"),
    "pools.md": ("Other pools", "drift, slow and fast engines, sizes, several routers, all layers, single steps, prefix caches"),
    "signatures.md": ("Signatures and clusters", "forms of signatures, width of the band, balanced and plain K-means"),
    "step-times.md": ("Step-time models", "the simulator's models and the published times behind them"),
    "real-engines.md": ("Real engines", "stock vLLM on CPUs: steps and placement"),
}  # fmt: skip
_MISSING = (
    ("Table 1, overheads on an MI300X: 0.86 ms, 1.2 % of the time to first token", "the plug-in has run on CPUs only: [its cost there](../benchmarks/engine.md)"),
    ("Fig 5, experts of mixed batches", "the paper gives no numbers in its text; ours are under *Signatures*"),
    ("Figs 7 and 14, gate scores of the paper's models", "the simulation draws counts; a small trained model stands in"),
    ("Fig 8, kept layers of each model", "simulated layers are drawn alike: which of the real ones matter cannot be seen"),
    ("plain K-means: P50 -9.8 % at best; balanced: P50 -12.6 %, P99 -6.8 %; tau = 0.1: P50 -5.2 to -12.7 %",
     "the baseline and the rates of these numbers are not known to us, and the artifact's own times, which have rows above, give others"),
    ("the artifact's width of the band tau = 0.1 in its sweep", "the same was measured beside plain K-means; that run has the rows"),
    ("idf: +4.9 points of rho in one case, +8.9 in another", "the mean over models and workloads has a row; which vectors these two compare is not known to us"),
)  # fmt: skip


class Beside(NamedTuple):
    """What was measured elsewhere and is shown beside the simulation.

    Attributes
    ----------
    measured : sequence of Measured
        Placement on real engines.
    engines : str
        The section about them.
    routed : mapping, optional
        What :func:`eldr_lab.evidence.routing.read` returns.
    tuned : mapping
        What :func:`eldr_lab.evidence.strengths.read` returns.
    """

    measured: list[Measured]
    engines: str
    routed: Mapping[str, Any] | None
    tuned: Mapping[str, Tuned]


def pages(results: Results, beside: Beside) -> dict[str, str]:
    """Return every page by its path below ``docs``."""
    found = rows(results)
    if beside.routed is not None:
        found += routing.rows(beside.routed)
    texts = {
        "reproduction.md": _reproduction(results, found),
        "default.md": _default(results),
        "times.md": [details.times(results), sections.first_tokens(results), details.experts(results), sections.throughput(results)],
        "pools.md": _pools(results),
        "signatures.md": [details.signatures(results), routing.forms(beside.routed), details.taus(results), sections.clusters(results)],
        "step-times.md": _models(results),
        "real-engines.md": [beside.engines],
    }  # fmt: skip
    made = {FIRST: opening(results, beside.measured, beside.tuned, _APPENDIX)}
    for name, parts in texts.items():
        title = _APPENDIX[name][0]
        text = "\n\n".join((f"# {title}", _about(results, name), *parts)) + "\n"
        made[f"{FOLDER}/{name}"] = _below(text)
    return made


def _below(text: str) -> str:
    """Return text whose links start in a folder below ``docs``."""
    for folder in ("images/", "benchmarks/", "development/"):
        text = text.replace(f"]({folder}", f"](../{folder}")
    return text


def _about(results: Results, page: str) -> str:
    first = "Part of the [evidence](../evidence.md). `make -C hack/lab evidence` writes this page"
    if page == "real-engines.md":
        return f"{first}, from what the benchmarks that it links have measured. Nothing here is simulated."
    plan = results.plan
    more = (
        f" and {listed([str(seed) for seed in plan.more])} where policies are compared cell by cell"
        if plan.more
        else ""
    )
    return (
        f"{first}. Simulated with the router's own policies: "
        f"{len(plan.cells)} cells, {plan.size.seconds:.0f} s measured each, answers of {plan.size.output_tokens} tokens, 16 engines unless said otherwise. "
        f"Seeds {listed([str(seed) for seed in plan.seeds])}{more}. ± is half of a 95 % interval over the seeds. Under one seed, all policies get the same requests. "
        f"Against published numbers the band is off by {errors.short(results)} points of P50 / P99 on engines of one rank ([how](../evidence.md#the-models-error)). "
        f"Of other policies, pools and single cells no error is known. {_LAB}"
        + (f" Code of the simulation: {results.revision}; real engines: on the pages of their benchmarks." if results.revision else "")
    )  # fmt: skip


def _reproduction(results: Results, found: list[Row]) -> list[str]:
    holds = claims.claims(results)
    legend = (
        f"Percent of change unless said otherwise. *Reproduced*: our interval reaches the published number, give or take {100 * SHARE:.0f} % of its size and at "
        f"least {LEAST:.0f} point, since published runs are single ones. A wide interval of ours counts no more than that again.\n\n*Overstated*, *understated*: of the same "
        f"sign and beyond that. *Not reproduced*: of the other sign and beyond that, or our interval holds no effect where the published number is more than {LEAST:.0f} point. "
        "*In sample*: something of the simulator was chosen so that the number "
        "comes out. Each published number has one row."
    )
    sources = f"Published: the paper ({published.PAPER}) and its artifact ({published.ARTIFACT})."
    failed = [claim.what for claim in holds if claim.holds is Holds.NO]
    return [
        section("Reproduction", legend, sources, table(("what", "simulated", "published", "tuned", "verdict", "why"), [row.cells() for row in found])),
        section("What should hold, and does it?", "Judged by intervals.", *(["Not:", "\n".join(f"* {what}" for what in failed)] if failed else []),
                table(("what", "found, %", "holds"), [(c.what, c.found, c.holds.value) for c in holds])),
        section("Missing", table(("what", "why"), _MISSING)),
    ]  # fmt: skip


def _default(results: Results) -> list[str]:
    standing = [
        (policy(one.policy), str(one.median), str(one.mean), str(one.tail), str(one.worst), advice.describe(one.where))
        for one in advice.standings(results, advice.cells(results))
    ]  # fmt: skip
    parts = [
        section("The choice", advice.sentence(results), advice.RULE, "Percent against JSQ over all those cells, slow and fast engines included:",
                table(("policy", "P50", "mean", "P99", "worst P99", "where"), standing), _refit(results)),
        details.marginal(results),
        _untuned(results),
    ]  # fmt: skip
    if results.plan.ceilings:
        parts.insert(1, _ceiling(results))
    return parts


def _ceiling(results: Results) -> str:
    rows = []
    for cell in results.cells("main"):
        changes = [
            str(results.change([cell], name, JSQ, measure))
            for measure in (MEAN, P50, P99)
            for name in (PRIOR, CEILING)
        ]
        share = results.share([cell], PRIOR, CEILING, MEAN).text(".0f", ".0f")
        rows.append((f"{place(cell.geometry, cell.workload)}, {cell.rate:.0f}/s", *changes, share))  # fmt: skip
    head = [f"{measure}, {name}" for measure in ("mean", "P50", "P99") for name in ("default", "ceiling")]
    return section(
        "The ceiling",
        "Simulated annealing over whole schedules, from the default's own, replayed in the simulator. It knows every arrival, activation and "
        "length. It minimizes the mean. The search is local, so that the true optimum is at least as good. Each request is placed at once: a schedule that lets requests wait for others is not searched.\n\n% against JSQ, "
        f"{results.plan.ceilings} seeds for the ceiling. *share*: the default's part of the ceiling's mean gain, %.",
        table(("where", *head, "share"), rows),
    )


def _refit(results: Results) -> str:
    main, drift = results.cells("main"), results.cells("drift")
    middle, tail = (str(results.change(main, PRIOR, ROLLING, measure)) for measure in (P50, P99))
    mean, late = (str(results.change(drift, PRIOR, ROLLING, measure)) for measure in (MEAN, P99))
    return (
        f"Against the band as the artifact runs it ({policy(ROLLING)}), {policy(PRIOR)} changes P50 by {middle} % and P99 by {tail} % over the main cells. "
        f"After a drift its own prior is stale, while that band refits within seconds: the mean changes by {mean} % and P99 by {late} %."
    )


def _untuned(results: Results) -> str:
    """Return the cells in which no constant of anything was chosen, by themselves."""
    geometry, workload = next(
        (kind for kind in results.kinds("main") if kind == _UNTOUCHED), results.kinds("main")[-1]
    )
    found = [
        (f"{cell.rate:.0f} requests/s", policy(name), *(str(results.change([cell], name, JSQ, measure)) for measure in (P50, MEAN, P99)))
        for cell in results.cells("main", workload, geometry)
        for name in (BAND, BOUNDED, MARGINAL, PRIOR)
    ]  # fmt: skip
    return section(
        "Where nothing was tuned",
        f"{place(geometry, workload)}: no constant of a policy was chosen on this model, and no time of this workload was looked at. % against JSQ:",
        table(("where", "policy", "P50", "mean", "P99"), found),
    )


def _pools(results: Results) -> list[str]:
    brief = (BAND, MARGINAL, PRIOR)
    sizes = [
        (f"{size} engines", policy(name), *(str(results.change(cells, name, "RoundRobin", measure)) for measure in (MEAN, P50, P99)))
        for size, cells in pooled(results)
        for name in brief
    ]  # fmt: skip
    first = model(results.kinds("drift")[0][0])
    return [
        details.changes(
            results, "drift", "Drift", f"The mix of kinds changes at {DRIFT_AT:.0f} s and the centroids stay. Measured is what comes after, % against JSQ. "
            f"{first}. *Refit* ones follow it within seconds.", (*LOCALITY, ROLLING, ROLLING_PRIOR), picture=True,
        ),
        details.changes(
            results, "uneven", "Slow and fast engines", f"Of 16 engines {details.slower()}. MarginalUnion knows each engine's own step time, also where it is "
            "*blind* to experts. % against JSQ, which knows neither. Medians mislead where engines are of two kinds: read mean and P99.", (*LOCALITY, BLIND), picture=True,
        ),
        section("Size of the pool", f"{first}, language, mean over the rates, % against round robin, as in the paper's Table 2:",
                table(("where", "policy", "mean", "P50", "P99"), sizes)),
        details.changes(
            results, "deep", "All layers", "Elsewhere 8 simulated layers stand for all of a model. Here the model has all of them; MarginalUnion looks at 8, as "
            "routers do. % against JSQ:", brief,
        ),
        details.changes(
            results, "routers", "Several routers", "Requests go to routers in turn. Each knows its own, and what others reported of theirs when they last exchanged "
            "numbers in flight and unions; *never*: they have lost each other. % against JSQ with as many routers:", brief,
        ),
        details.changes(
            results, "flat", "Where experts cost nothing", "The same typical step, and no cost per expert: a policy should be a balancer there. % against JSQ:", brief,
        ),
        sections.steps(results),
        sections.prefix(results),
    ]  # fmt: skip


def _models(results: Results) -> list[str]:
    return [
        details.laws(results),
        details.changes(
            results, "law", "With the least squares", f"{model(results.kinds('law')[0][0])} at 60 requests/s, with the *least squares* model of the table above. Changes are in % against JSQ:",
            (BAND, MARGINAL, PRIOR),
        ),
    ]  # fmt: skip
