"""The document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from eldr_lab.evidence import advice, balance, balance_rows, claims, details, published, routing, sections
from eldr_lab.evidence.cells import (
    BAND,
    BOUNDED,
    DRIFT_AT,
    DUELLISTS,
    JSQ,
    LOCALITY,
    MARGINAL,
    PRIOR,
    ROLLING,
    ROLLING_PRIOR,
)
from eldr_lab.evidence.markdown import listed, section, table
from eldr_lab.evidence.names import model, place, policy
from eldr_lab.evidence.reproduction import rows
from eldr_lab.evidence.results import BEST, MEAN, P50, P99, Results
from eldr_lab.evidence.rows import Row
from eldr_lab.evidence.verdicts import LEAST, SHARE, Holds, Verdict

_UNTOUCHED = ("gpt-oss-120b", "language")
_MISSING = (
    (
        "Fig 3, correlation of single experts",
        "our figure stands under *Signatures*; the paper's number is not known to us",
    ),
    (
        "Figs 7 and 14, gate scores, of the paper's models",
        "the simulation draws counts; of a small trained model they stand under *Signatures of real routing*",
    ),
    (
        "Fig 8, kept layers of each model",
        "8 simulated layers stand for all of a model: which of the real ones matter cannot be seen",
    ),
    ("Tables 1 and 2", "models and settings, no measurement that is known to us"),
    ("all-reduces between the ranks of an engine", "see *Engines of several ranks*"),
)


def document(
    results: Results, measured: str, routed: Mapping[str, Any] | None, balanced: Mapping[str, Any] | None
) -> str:
    """Return the whole document.

    Parameters
    ----------
    results : Results
    measured : str
        The section about real engines: the strongest evidence stands first.
    routed : mapping, optional
        What :func:`eldr_lab.evidence.routing.read` returns.
    balanced : mapping, optional
        What :func:`eldr_lab.evidence.balance_results.read` returns.
    """
    found, holds = rows(results), claims.claims(results)
    if routed is not None:
        found += routing.rows(routed)
    if balanced is not None:
        found += balance_rows.rows(balanced)
    plan = results.plan
    about = (
        f"Written by `make -C hack/lab evidence`; no figure is by hand. Pools of decode engines were simulated with the router's own policies "
        f"(`eldr simulate`), {len(plan.cells)} cells, {len(plan.seeds)} seeds ({listed([str(seed) for seed in plan.seeds])}), {plan.size.seconds:.0f} s measured each, "
        f"answers of {plan.size.output_tokens} tokens, 16 engines unless said otherwise; in the main cells prompts pass 8 prefill engines first. ± is half of a 95 % interval over the seeds, which change "
        "arrivals, requests and the model's preferences; policies of one seed meet the same requests."
        + (
            f" {listed([policy(name) for name in DUELLISTS])} met {len(plan.more)} seeds more in the main cells, in pools that drift and in uneven ones ({listed([str(seed) for seed in plan.more])}); MarginalUnion is judged by those alone there."
            if plan.more
            else ""
        )
    )
    parts = [
        "# Evidence",
        measured,
        "## In simulated pools",
        about,
        f"Published numbers: the paper ({published.PAPER}) and its artifact ({published.ARTIFACT}); {published.METRO}.",
        _take(results, found, [] if balanced is None else [balance.take(balanced)]),
        section("Reproduction", _legend(), "![the band against the best balancer](images/evidence/headline.png)", _reproduction(found)),
        section("What should hold, and does it?", _summary(holds), table(("what", "found, %", "holds"), [(c.what, c.found, c.holds.value) for c in holds])),
        details.times(results),
        sections.first_tokens(results),
        details.experts(results),
        details.marginal(results),
        details.changes(
            results, "drift", "Drift", f"The mix of kinds changes at {DRIFT_AT:.0f} s and the centroids stay; measured is what comes after, % against JSQ. "
            f"{model(results.kinds('drift')[0][0])}. *Re-fitted* ones follow it within seconds.", (*LOCALITY, ROLLING, ROLLING_PRIOR), picture=True,
        ),
        details.changes(
            results, "uneven", "Slow and fast engines", f"Of 16 engines {details.slower()}; MarginalUnion knows each engine's own law. % against JSQ, "
            "which does not. Medians mislead where engines are of two kinds: read mean and P99.", LOCALITY, picture=True,
        ),
        details.changes(results, "pool", "Size of the pool", "The same load per engine, % against JSQ:", (BAND, MARGINAL, PRIOR)),
        details.changes(
            results, "routers", "Several routers", "Requests go to routers in turn; each knows its own, and what others told of theirs when they last exchanged "
            "numbers in flight and unions; *never*: they have lost each other. % against JSQ with as many routers:", (BAND, MARGINAL, PRIOR),
        ),
        details.changes(
            results, "flat", "Where experts cost nothing", "A law with the same typical step and no cost per expert: a policy should be a balancer "
            "there. % against JSQ:", (BAND, MARGINAL, PRIOR),
        ),
        details.signatures(results),
        routing.forms(routed),
        details.taus(results),
        sections.clusters(results),
        sections.prefix(results),
        sections.ranks(results),
        balance.text(balanced),
        sections.steps(results),
        sections.throughput(results),
        details.laws(list(dict.fromkeys(geometry for geometry, _ in results.kinds("main")))),
        details.changes(
            results, "law", "With the law fitted anew", f"{model(results.kinds('law')[0][0])} at 60 requests/s under *fitted anew* of the table above, % against JSQ:",
            (BAND, MARGINAL, PRIOR),
        ),
        _tuned(results),
        _untuned(results),
        section("Missing", table(("what", "why"), _MISSING)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _take(results: Results, found: list[Row], further: list[str]) -> str:
    standing = [
        (
            policy(one.policy),
            str(one.median),
            str(one.mean),
            str(one.tail),
            str(one.worst),
            advice.describe(one.where),
        )
        for one in advice.standings(results, advice.cells(results))
    ]
    counts = Counter(row.verdict for row in found)
    gains = [results.change(results.cells("main", w, g), BAND, BEST, P50) for g, w in results.kinds("main")]
    tails = [results.change([cell], BAND, BEST, P99) for cell in results.cells("main")]
    longer = sum(tail.low > 0 for tail in tails)
    drift = [results.change([cell], BAND, "JSQ", P99) for cell in results.cells("drift")]
    held = [results.change([cell], PRIOR, "JSQ", P99) for cell in results.cells("drift")]
    low, high = min(gains), max(gains)
    duels = claims.duels(results, PRIOR)
    bounded = [results.change(results.cells("main"), PRIOR, BOUNDED, measure) for measure in (P50, P99)]
    pooled = [results.change(results.cells("main"), PRIOR, BAND, measure) for measure in (P50, P99)]
    weak = [row.what for row in found if row.verdict is Verdict.NOT]
    points = [
        advice.sentence(results),
        (
            f"Placing by experts pays: the paper's band changes P50 by {low.mean:+.1f} % ({place(*results.kinds('main')[gains.index(low)])}) to {high.mean:+.1f} % "
            f"({place(*results.kinds('main')[gains.index(high)])}) against the best balancer, mean over the rates. These are predictions; the table below "
            "sets them beside what was measured on accelerators."
        ),
        (
            f"The band's tail is not free: its P99 is surely longer than the best balancer's in {longer} of {len(tails)} cells, and after a drift with stale "
            f"centroids up to {max(one.mean for one in drift):+.1f} % above JSQ, where {policy(PRIOR)} has {max(one.mean for one in held):+.1f} % at worst."
        ),
        (
            f"{policy(PRIOR)} against the band, cell by cell: P50 not worse {claims.count([one[2] for one in duels])}; P99 better "
            f"{claims.count([one[4] for one in duels])}; over all of them P50 {pooled[0]} % and P99 {pooled[1]} %; against the bounded band P50 {bounded[0]} % and P99 {bounded[1]} %."
        ),
        _re_fitted(results),
        *further,
        f"Of {len(found)} published numbers, {counts[Verdict.REPRODUCED]} are reproduced, {counts[Verdict.WEAKER]} come out weaker, "
        f"{counts[Verdict.STRONGER]} stronger, {counts[Verdict.NOT]} are not reproduced"
        + (f": {'; '.join(weak)}." if weak else "."),
    ]
    return section(
        "What to take from it",
        "\n".join(f"* {point}" for point in points),
        "Percent against JSQ over all those cells:",
        table(("policy", "P50", "mean", "P99", "worst P99", "where"), standing),
    )


def _re_fitted(results: Results) -> str:
    main, drift = results.cells("main"), results.cells("drift")
    middle, tail = (str(results.change(main, PRIOR, ROLLING, measure)) for measure in (P50, P99))
    mean, late = (str(results.change(drift, PRIOR, ROLLING, measure)) for measure in (MEAN, P99))
    return (
        f"Against the band as the artifact runs it ({policy(ROLLING)}), {policy(PRIOR)} changes P50 by {middle} % and P99 by {tail} % over the main "
        f"cells; after a drift, which re-fits follow within seconds, the mean by {mean} % and P99 by {late} %, its own prior being stale."
    )


def _legend() -> str:
    return (
        f"Percent of change unless said otherwise. *Reproduced*: our interval reaches the published number, give or take {100 * SHARE:.0f} % of its size (of a range: of its nearer end) and at "
        f"least {LEAST:.0f} point, since published runs are single ones; a wide interval of ours counts no more than that again. *Stronger*, *weaker*: of the same sign and beyond that. *Not reproduced*: of "
        "the other sign, or not told apart from nothing."
    )


def _reproduction(found: list[Row]) -> str:
    return table(("what", "simulated", "published", "verdict", "why"), [row.cells() for row in found])


def _summary(holds: list[claims.Claim]) -> str:
    text = f"Judged by intervals: {claims.count([claim.holds for claim in holds]).replace('cells', 'statements')}."
    failed = [claim.what for claim in holds if claim.holds is Holds.NO]
    return text + (f" Not: {'; '.join(failed)}." if failed else "")


def _tuned(results: Results) -> str:
    more = results.plan.more
    fresh = (
        f"Where it is compared in the main cells, in pools that drift and in uneven ones, only seeds from {min(more)} on count, under which nothing was "
        "chosen; elsewhere its figures share seeds with that choice."
        if more
        else "Its figures share seeds with that choice."
    )
    return section(
        "What was tuned",
        "* Strengths of the synthetic preferences (`eldr/simulate/synthetic.py`): once, by hand, for Qwen3-30B's geometry, so that batches of one "
        "kind save what the paper reports and signatures correlate as it reports. The same strengths serve all models; "
        "Gemma-4-26B has Qwen3-30B's numbers of experts, so that its simulated activations are Qwen3-30B's and only its law differs.\n"
        "* The constants of the step-time laws: to round-robin P50 of the task workload.\n"
        "* No time of the band, of Domain or of any other policy went into either, nor any time of the language workload: those are "
        "predictions. tau and min-2 are the paper's and its artifact's, the bound of 1.25 is the project's.\n"
        "* The prior of 0.23 was chosen earlier on workloads of this very kind: how far it carries over to others is open.\n"
        "* MarginalUnion's other constants (the step of its tolls, 0.01; the power with which growth fades, 4) were chosen in cells of Qwen3-30B and "
        "Gemma-4-26B, task and language, under the seeds 0 to 5 ([what was tried](development/marginal-union.md)); its greatest load, 3 times the mean, was not tuned. "
        + fresh,
    )


def _untuned(results: Results) -> str:
    """Return the cells in which no constant of anything was chosen, by themselves."""
    geometry, workload = next(
        (kind for kind in results.kinds("main") if kind == _UNTOUCHED), results.kinds("main")[-1]
    )
    rows = [
        (f"{cell.rate:.0f} requests/s", policy(name), *(str(results.change([cell], name, JSQ, measure)) for measure in (P50, MEAN, P99)))
        for cell in results.cells("main", workload, geometry)
        for name in (BAND, BOUNDED, MARGINAL, PRIOR)
    ]  # fmt: skip
    return section(
        "Where nothing was tuned",
        f"{place(geometry, workload)}: neither preferences nor any constant of a policy were chosen on this model, nor its law on this workload. % against JSQ:",
        table(("where", "policy", "P50", "mean", "P99"), rows),
    )
