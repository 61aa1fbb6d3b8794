"""The first page: one table, what it says, what was tuned, what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eldr_lab.evidence import advice, errors
from eldr_lab.evidence.cells import BAND, BLIND, BOUNDED, CEILING, JSQ, PRIOR, RATES, ROLLING, Cell
from eldr_lab.evidence.markdown import listed, section, table
from eldr_lab.evidence.names import model, place, policy
from eldr_lab.evidence.published import HEADLINE
from eldr_lab.evidence.results import BEST, MEAN, P50, P99, Results
from eldr_lab.evidence.strengths import Tuned
from eldr_lab.steps.policies_figures import Measured

_NONE = ""

_BESIDE = (
    ("[A prior that waits for no fit](benchmarks/prior.md)", "the prior that routers learn, beside a fitted one and none; written by `make -C hack/lab bench-prior`"),
    ("[Long contexts](benchmarks/contexts.md)", "prompts of 1k and 64k where KV caches may be full: preemptions, refusals, times; written by `make -C hack/lab bench-contexts`"),
    ("[Long contexts on real engines](benchmarks/contexts-engines.md)", "the same on three engines of vLLM on CPUs; written by `make -C hack/lab bench-contexts-engines RATE=3`"),
)  # fmt: skip


def opening(
    results: Results,
    measured: Sequence[Measured],
    tuned: Mapping[str, Tuned],
    appendix: Mapping[str, tuple[str, str]],
) -> str:
    """Return the page.

    Parameters
    ----------
    results : Results
    measured : sequence of Measured
        What was measured on real engines.
    tuned : mapping
        What the strength of preference of each model was tuned to.
    appendix : mapping
        Title and summary of each further page, by its file.
    """
    pages = [(f"[{title}](evidence/{name})", text) for name, (title, text) in appendix.items()]
    return "\n\n".join((
        "# Evidence",
        ("Does placement by experts make decoding faster? Simulated pools with the router's own policies, real vLLM engines on CPUs, and "
        "the best schedule that a clairvoyant search finds. Nothing here was measured on a GPU by us; [what the plug-in costs](benchmarks/gpu-check.md) was. `make -C hack/lab evidence` writes this page."),
        _table(results, measured),
        _legend(results),
        "![the band against the best balancer, simulated and published](images/evidence/headline.png)",
        section("What it says", _points(results, measured)),
        errors.text(results),
        section("What was tuned", _tuned(tuned)),
        section("Details", table(("page", "what it holds"), [*pages, *_BESIDE])),
    )) + "\n"  # fmt: skip


def _table(results: Results, measured: Sequence[Measured]) -> str:
    rows = []
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        paper = " / ".join(f"{number:+.1f}" for number in HEADLINE[geometry, workload])
        rows.append((place(geometry, workload), paper, *(_pair(results, cells, name) for name in (BAND, PRIOR)), _ceiling(results, cells)))  # fmt: skip
    names = {policy(name): name for name in (BAND, PRIOR)}
    pools = dict.fromkeys(one.pool for one in measured)
    for pool in pools:
        known = {names[one.policy]: one for one in measured if one.pool == pool and one.policy in names}
        changes = [_real(known[name]) if name in known else _NONE for name in (BAND, PRIOR)]
        rows.append((f"real engines: {pool}", _NONE, *changes, _NONE))
    return table(("P50 / P99, % against the balancer", "paper: band", "band", "default", "ceiling"), rows)


def _pair(results: Results, cells: Sequence[Cell], name: str) -> str:
    return " / ".join(str(results.change(cells, name, BEST, measure)) for measure in (P50, P99))


def _ceiling(results: Results, cells: Sequence[Cell]) -> str:
    return _pair(results, cells, CEILING) if results.plan.ceilings else _NONE


def _real(one: Measured) -> str:
    changes = (one.changes[measure] for measure in ("TPOT P50", "TPOT P99"))
    return " / ".join(f"{mean:+.1f} ±{half:.1f}" for mean, half in changes)


def _legend(results: Results) -> str:
    plan = results.plan
    fresh = listed([str(seed) for seed in plan.more]) if plan.more else "none"
    return (
        "*band*: the paper's policy, `ELDR`, without a bound on load: the guides recommend `maxLoad: 1.25`. *default*: `MarginalUnion` with centroids as its prior. *ceiling*: the best that a local search finds which knows all arrivals, activations and "
        "lengths in advance, and places each request at once. It lowers the mean, so that its P99 is no bound. Nobody can run it.\n\n"
        f"Simulated: 16 engines, step times fitted to published ones of MI300X, {plan.size.seconds:.0f} s, answers of {plan.size.output_tokens} tokens, mean over {RATES[0]:.0f} to {RATES[-1]:.0f} requests/s, against the best of four balancers. Real engines: against JSQ. "
        f"± is half of a 95 % interval (Student's t), over seeds or over traces: sampling only. For the band the [model's error](#the-models-error) comes to that, "
        f"{errors.short(results)} points of P50 / P99; for the default, for means and for single cells it is not known. The default is judged under seeds that no constant was "
        f"chosen under ({fresh}), the ceiling under the first {plan.ceilings} of them."
    )


def _points(results: Results, measured: Sequence[Measured]) -> str:
    points = [
        advice.sentence(results),
        *_near(results),
        *_less(measured),
        _tails(results),
        *_uneven(results),
        *_deep(results),
    ]
    return "\n".join(f"* {point}" for point in points)


def _near(results: Results) -> list[str]:
    if not results.plan.ceilings:
        return []
    main = results.cells("main")
    least, most = (
        results.share([cell for cell in main if cell.rate == rate], PRIOR, CEILING, MEAN)
        for rate in (min(cell.rate for cell in main), max(cell.rate for cell in main))
    )
    shares = {cell: results.share([cell], PRIOR, CEILING, MEAN) for cell in main}
    worst = min(shares, key=lambda cell: shares[cell].mean)
    return [
        (
            f"**A search finds little more in most cells.** The default reaches {results.share(main, PRIOR, CEILING, MEAN).text('.0f', '.0f')} % of its mean gain "
            f"({len(main)} cells, {results.plan.ceilings} seeds). That is {least.text('.0f', '.0f')} % at the lowest rate and {most.text('.0f', '.0f')} % at the highest. "
            f"In the worst cell it reaches {shares[worst].text('.0f', '.0f')} % ({advice.describe(worst)}). The search is local and starts from the default's schedule, so the true "
            "optimum of immediate placement may be further away. A policy that also chose which request goes next could gain more."
        )
    ]


def _less(measured: Sequence[Measured]) -> list[str]:
    known, bounded = ([one for one in measured if one.policy == policy(name)] for name in (PRIOR, BOUNDED))
    if not known:
        return []

    def changes(some: Sequence[Measured], measure: str) -> str:
        return listed([f"{mean:+.1f} ±{half:.1f}" for one in some for mean, half in [one.changes[measure]]])

    beside = (
        f"The band with `maxLoad: 1.25` changes the mean by {changes(bounded, 'TPOT mean')} %, P99 by {changes(bounded, 'TPOT P99')} %. "
        if bounded
        else ""
    )
    return [
        (
            f"**On real engines** the default, with fitted centroids, changes the mean against JSQ by {changes(known, 'TPOT mean')} %. P99 changes by "
            f"{changes(known, 'TPOT P99')} %. The pools: {listed([one.pool for one in known])}. {beside}With the prior that routers learn: [placement](benchmarks/policies.md). "
            f"These are engines of a small model with 64 experts on one busy CPU machine, by the CPU time of their steps: {min(one.traces for one in known)} traces of the same prompts."
        )
    ]


def _tails(results: Results) -> str:
    main = results.cells("main")
    tails = [results.change([cell], BAND, BEST, P99) for cell in main]
    by_mean, longer = sum(tail.mean > 0 for tail in tails), sum(tail.low > 0 for tail in tails)
    drift = results.cells("drift")
    stale = {cell: results.change([cell], BAND, JSQ, P99) for cell in drift}
    worst = max(stale, key=lambda cell: stale[cell].mean)
    ours = max((results.change([cell], PRIOR, JSQ, P99) for cell in drift), key=lambda one: one.mean)
    refit, bounded = (results.change([worst], name, JSQ, P99) for name in (ROLLING, BOUNDED))
    return (
        f"**The paper's band can lengthen the tail.** In simulation its P99 is longer than the best balancer's in {by_mean} of {len(tails)} cells, by the whole interval in {longer}. After a drift with stale "
        f"centroids it is up to {stale[worst]} % above JSQ; the default, stale too, is at {ours} % at worst. With `maxLoad: 1.25` the band "
        f"is at {bounded} % in that cell. With the artifact's refit every 2.5 s and its second candidate it is at {refit} %; no user can run that."
    )


def _uneven(results: Results) -> list[str]:
    cells = [cell for cell in results.cells("uneven") if BLIND in cell.policies]
    if not cells:
        return []
    blind, rest = (
        [results.change(cells, name, other, measure) for measure in (MEAN, P99)]
        for name, other in ((BLIND, JSQ), (PRIOR, BLIND))
    )
    return [
        (
            f"**In pools of slow and fast engines, part of the gain is speed, not experts.** Knowing speeds alone changes the mean by {blind[0]} % and P99 by {blind[1]} % "
            f"against JSQ. Knowing experts as well changes them by {rest[0]} % and {rest[1]} % more. No published numbers check this."
        )
    ]


def _deep(results: Results) -> list[str]:
    cells = results.cells("deep")
    if not cells:
        return []
    ours, band = (results.change(cells, PRIOR, other, MEAN) for other in (JSQ, BAND))
    return [
        (
            f"**With all {cells[0].layers} layers simulated instead of 8**, the default changes the mean by {ours} % against JSQ and by {band} % against "
            f"the band. Cells: {listed(list(dict.fromkeys(place(cell.geometry, cell.workload) for cell in cells)))}, "
            f"{listed(sorted({f'{cell.rate:.0f}' for cell in cells}))} requests/s. Constants were chosen under some of the seeds ({listed([str(seed) for seed in results.plan.seeds])})."
        )
    ]


def _tuned(tuned: Mapping[str, Tuned]) -> str:
    factors = listed(
        [
            f"{model(name)} {one['factor']:g} ({one['found']:+.1f} % for {one['published']:+.1f})"
            for name, one in tuned.items()
        ]
    )
    return (
        f"* *Strength of preference*, one factor a model, by published times of Domain (P50, task).\n"
        f"  Factor, and what Domain then changes, simulated for published: {factors}.\n"
        "* *Shape of the preferences*: once, by hand, to the paper's unions and its rho of counts x idf. Those rows are in sample.\n"
        "* *Step-time models*: to published times of round robin, task workload.\n"
        "* *The default's constants*: in cells of Qwen3-30B and Gemma-4-26B under seeds 0 to 5 ([what was tried](development/marginal-union.md)).\n"
        "* Nothing else: no published time of ELDR, no published P99, and no published time of the language workload."
    )
