"""The pages, from the runs: texts are in ``templates``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from eldr_lab.evidence import published
from eldr_lab.evidence.cells import (
    BAND,
    BLIND,
    BOUNDED,
    JSQ,
    LOCALITY,
    MARGINAL,
    PRIOR,
    ROLLING,
    SLOWER,
    Cell,
    place,
    policy,
)
from eldr_lab.evidence.running import BEST, MEAN, P50, P99, STEP_EXPERTS, Results
from eldr_lab.report import Interval, filled, listed, table
from eldr_lab.steps.policies_page import Measured

TEMPLATES = Path(__file__).with_name("templates")
WORST_TAIL = 1.0
"""Percent of P99 above JSQ's that a default may cost in some cell."""
NOT_WORSE = 0.5
"""Percent of P50 that count as the same."""
FIELDS = {
    BAND: "`policy: ELDR`",
    BOUNDED: "`policy: ELDR` with `maxLoad: 1.25`",
    MARGINAL: "`policy: MarginalUnion` with `prior: 0` in a routing file",
    PRIOR: "`policy: MarginalUnion` with centroids as its prior",
}
_UNTOUCHED = ("gpt-oss-120b", "language")
_QUANTILES = ((P50, "P50"), (P99, "P99"))


class Standing(NamedTuple):
    """A policy against JSQ, over every cell and where its P99 is worst."""

    policy: str
    median: Interval
    mean: Interval
    tail: Interval
    worst: Interval
    where: Cell


def pages(results: Results, measured: Sequence[Measured]) -> dict[str, str]:
    """Return every page by its path below ``docs``.

    Parameters
    ----------
    results : Results
    measured : sequence of Measured
        Placement on real engines.
    """
    best = recommended(standings(results))
    plan, error = results.plan, " / ".join(f"{_errors(results, measure)[0]:.1f}" for measure in (P50, P99))
    common = {
        "about": filled(
            TEMPLATES / "about.txt", cells=len(plan.cells), seconds=plan.size.seconds, tokens=plan.size.output_tokens,
            seeds=listed([str(seed) for seed in plan.seeds]), more=listed([str(seed) for seed in plan.more] or ["none"]),
            error=error, revision=results.revision,
        ).strip(),
        "choice": _choice(results, best, error),
        "error": error,
    }  # fmt: skip
    return {
        "evidence.md": _evidence(results, measured, common),
        "evidence/default.md": _default(results, common),
        "evidence/reproduction.md": filled(
            TEMPLATES / "reproduction.txt", **common, share=100 * published.SHARE, least=published.LEAST,
            rows=table(("what", "simulated", "published", "tuned", "verdict"), rows(results)),
        ),
    }  # fmt: skip


def standings(results: Results) -> list[Standing]:
    """Return how every policy by locality stands over all cells."""
    cells, found = list(results.plan.cells), []
    for name in LOCALITY:
        tails = {cell: results.change([cell], name, JSQ, P99) for cell in cells}
        where = max(tails, key=lambda cell: tails[cell].mean)
        median, mean, tail = (results.change(cells, name, JSQ, measure) for measure in (P50, MEAN, P99))
        found.append(Standing(name, median, mean, tail, tails[where], where))
    return found


def recommended(found: Sequence[Standing]) -> Standing:
    """Return the policy with the least mean of those whose P99 is safe.

    Safe is a P99 that is nowhere more than a percent above JSQ's. Where every policy has such a cell: the one whose worst cell is the
    least bad.
    """
    safe = [one for one in found if one.worst.mean <= WORST_TAIL]
    return min(safe, key=lambda one: one.mean.mean) if safe else min(found, key=lambda one: one.worst.mean)


def rows(results: Results) -> list[tuple[str, ...]]:
    """Return published numbers beside ours, one row each."""
    found: list[tuple[str, ...]] = []

    def add(
        what: str, ours: Interval, span: tuple[float, float], source: str, *, tuned: bool = False
    ) -> None:
        text = f"{span[0]:+.1f}" if span[0] == span[1] else f"{span[0]:+.1f} .. {span[1]:+.1f}"
        verdict = published.judge(ours, *span).value
        found.append((what, str(ours), f"{text} ({source})", "in sample" if tuned else "", verdict))

    for name, there in ((BAND, "paper"), (ROLLING, "ELDR"), ("Domain", "Domain")):
        for kind in results.kinds:
            for quantile, (measure, title) in enumerate(_QUANTILES):
                # two candidates and refits are what the artifact measured, the plain band what the paper's text describes
                is_paper = there == "paper"
                number = (
                    published.HEADLINE[kind][quantile]
                    if is_paper
                    else published.against_best(*kind, there, quantile)
                )
                add(
                    f"{place(*kind)}: {policy(name)}, {title} against the best balancer",
                    results.change(results.cells("main", kind=kind), name, BEST, measure), (number, number),
                    "paper" if is_paper else "artifact", tuned=(name, kind[1], measure) == ("Domain", "task", P50),
                )  # fmt: skip
    cells = [cell for cell in results.cells("main") if cell.workload == "task"]
    change = results.change(cells, "Domain", BEST, P50)
    add(
        "all models, task: Domain, P50 against the best balancer, mean",
        change,
        published.DOMAIN,
        "paper",
        tuned=True,
    )
    for span, (measure, title) in zip(published.BEYOND_DOMAIN, _QUANTILES, strict=True):
        change = results.change(cells, BAND, "Domain", measure)
        add(f"all models, task: band, {title} against Domain, mean", change, span, "paper")
    first = results.kinds[0]
    add(
        f"{place(*first)}: active experts of the band's steps against round robin",
        results.change(results.cells("main", kind=first), BAND, "RoundRobin", STEP_EXPERTS), published.ACTIVE, "paper",
    )  # fmt: skip
    return found


def _choice(results: Results, best: Standing, error: str) -> str:
    even, uneven = results.cells("main", "drift"), results.cells("uneven")
    p50, mean, p99 = (results.change(even, best.policy, JSQ, measure) for measure in (P50, MEAN, P99))
    apart = [results.change(uneven, best.policy, JSQ, measure) for measure in (MEAN, P99, P50)]
    return filled(
        TEMPLATES / "choice.txt", field=FIELDS[best.policy], p50=p50, mean=mean, p99=p99, even=len(even), error=error,
        uneven=len(uneven), slower=SLOWER, apart=apart, worst=best.worst, where=best.where,
    ).strip()  # fmt: skip


def _evidence(results: Results, measured: Sequence[Measured], common: dict[str, str]) -> str:
    main, drift, uneven = (results.cells(name) for name in ("main", "drift", "uneven"))
    shown = [
        (
            place(*kind), " / ".join(f"{number:+.1f}" for number in published.HEADLINE[kind]),
            *(" / ".join(str(results.change(results.cells("main", kind=kind), name, BEST, measure)) for measure in (P50, P99)) for name in (BAND, PRIOR)),
        )
        for kind in results.kinds
    ]  # fmt: skip
    real = {(one.pool, one.policy): one for one in measured}
    pools = list(dict.fromkeys(one.pool for one in measured))
    for pool in pools:
        cells = (
            " / ".join(_real(real[pool, policy(name)], measure) for measure in ("TPOT P50", "TPOT P99"))
            for name in (BAND, PRIOR)
        )
        shown.append((f"real engines: {pool}", "", *cells))

    def on_engines(name: str, measure: str) -> str:
        return listed([_real(real[pool, policy(name)], measure) for pool in pools] or ["nothing"])

    tails = [results.change([cell], BAND, BEST, P99) for cell in main]
    stale = {cell: results.change([cell], BAND, JSQ, P99) for cell in drift}
    worst = max(stale, key=lambda cell: stale[cell].mean)
    errors = [_errors(results, measure) for measure in (P50, P99)]
    names = (
        "the simulated band",
        "the paper's artifact",
        "a constant: the mean of the paper's other numbers",
    )
    misses = {
        kind: (
            results.change(results.cells("main", kind=kind), BAND, BEST, P99).mean,
            published.HEADLINE[kind][1],
        )
        for kind in results.kinds
    }
    miss = max(misses, key=lambda kind: abs(misses[kind][0] - misses[kind][1]))
    return filled(
        TEMPLATES / "evidence.txt", **common,
        table=table(("P50 / P99, % against the balancer", "paper: band", "band", "default"), shown),
        size=results.plan.size, fresh=listed([str(seed) for seed in results.plan.more] or ["none"]),
        traces=min([one.traces for one in measured], default=0), pools=listed(pools or ["none"]),
        default_mean=on_engines(PRIOR, "TPOT mean"), default_p99=on_engines(PRIOR, "TPOT P99"),
        bounded_mean=on_engines(BOUNDED, "TPOT mean"), bounded_p99=on_engines(BOUNDED, "TPOT P99"),
        longer=sum(tail.mean > 0 for tail in tails), surely=sum(tail.low > 0 for tail in tails), main=len(main),
        stale=stale[worst], ours=max((results.change([cell], PRIOR, JSQ, P99) for cell in drift), key=lambda one: one.mean),
        bounded=results.change([worst], BOUNDED, JSQ, P99), refit=results.change([worst], ROLLING, JSQ, P99),
        blind=[results.change(uneven, BLIND, JSQ, measure) for measure in (MEAN, P99)],
        rest=[results.change(uneven, PRIOR, BLIND, measure) for measure in (MEAN, P99)],
        errors=table(("", "P50", "P99"), [(name, *(f"{error[at]:.1f}" for error in errors)) for at, name in enumerate(names)]),
        miss=abs(misses[miss][0] - misses[miss][1]), where=place(*miss), found=misses[miss][0], paper=misses[miss][1],
    )  # fmt: skip


def _real(one: Measured, measure: str) -> str:
    mean, half = one.changes[measure]
    return f"{mean:+.1f} ±{half:.1f}"


def _default(results: Results, common: dict[str, str]) -> str:
    main, drift = results.cells("main"), results.cells("drift")
    names = (MARGINAL, PRIOR)
    duels = {
        (cell, name): [results.change([cell], name, BAND, measure) for measure in (P50, P99)]
        for cell in main
        for name in names
    }
    counted = []
    for name in names:
        middles, tails = zip(*(duels[cell, name] for cell in main), strict=True)
        over_all = [
            results.change(main, name, other, measure) for other in (BAND, BOUNDED) for measure in (P50, P99)
        ]
        counted.append(
            f"{policy(name)}: P50 not worse {_count(middles, NOT_WORSE)}; P99 better {_count(tails, 0.0)}. Over all cells P50 {over_all[0]} %, "
            f"P99 {over_all[1]} %; against the bounded band {over_all[2]} % and {over_all[3]} %."
        )
    kinds = [
        (place(*kind), *(str(results.change(results.cells("main", kind=kind), name, BAND, measure)) for name in names for measure in (P50, P99)))
        for kind in results.kinds
    ]  # fmt: skip
    titles = ("no prior: P50", "no prior: P99", "prior: P50", "prior: P99")
    each = [
        (f"{place(cell.geometry, cell.workload)}, {cell.rate:.0f}/s", *(str(change) for name in names for change in duels[cell, name]))
        for cell in main
    ]  # fmt: skip
    untouched = _UNTOUCHED if _UNTOUCHED in results.kinds else results.kinds[-1]
    untuned = [
        (f"{cell.rate:.0f} requests/s", policy(name), *(str(results.change([cell], name, JSQ, measure)) for measure in (P50, MEAN, P99)))
        for cell in results.cells("main", kind=untouched)
        for name in (BAND, BOUNDED, MARGINAL, PRIOR)
    ]  # fmt: skip
    standing = [
        (policy(one.policy), *map(str, (one.median, one.mean, one.tail, one.worst)), str(one.where))
        for one in standings(results)
    ]
    return filled(
        TEMPLATES / "default.txt", **common, worst_tail=WORST_TAIL, not_worse=NOT_WORSE,
        standings=table(("policy", "P50", "mean", "P99", "worst P99", "where"), standing),
        refit=[results.change(main, PRIOR, ROLLING, measure) for measure in (P50, P99)],
        late=[results.change(drift, PRIOR, ROLLING, measure) for measure in (MEAN, P99)],
        drift=_changes(results, "drift", (*LOCALITY, ROLLING)), uneven=_changes(results, "uneven", (*LOCALITY, BLIND)),
        slower=SLOWER, drift_at=drift[0].drift_at, seeds=len(results.plan.more or results.plan.seeds), counted="\n\n".join(counted),
        kinds=table(("mean over the rates", *titles), kinds), cells=table(("where", *titles), each),
        untouched=place(*untouched), untuned=table(("where", "policy", "P50", "mean", "P99"), untuned),
    )  # fmt: skip


def _changes(results: Results, experiment: str, names: Sequence[str]) -> str:
    """Return an experiment's changes against JSQ, cell by cell."""
    measures = (MEAN, P50, P99, STEP_EXPERTS)
    return table(
        ("where", "policy", "mean", "P50", "P99", "experts per step"),
        [
            (f"{cell.workload}, {cell.rate:.0f}/s", policy(name), *(str(results.change([cell], name, JSQ, measure)) for measure in measures))
            for cell in results.cells(experiment)
            for name in names
        ],
    )  # fmt: skip


def _count(changes: Sequence[Interval], bound: float) -> str:
    """Return in how many cells a change is at most a bound, in words.

    All of the interval has to agree; it is undecided where some of it does.
    """
    yes, no = sum(one.high <= bound for one in changes), sum(one.low > bound for one in changes)
    text = f"holds in {yes} of {len(changes)} cells"
    if no:
        text += f", not in {no}"
    return text + (f", undecided in {len(changes) - yes - no}" if yes + no < len(changes) else "")


def _errors(results: Results, measure: str) -> tuple[float, float, float]:
    """Return distances from the paper's numbers of its band, root mean squares in points.

    They are those of the simulated band, of the artifact's own times, and of a constant: what somebody guesses who knows nothing of
    model and workload.
    """
    quantile, kinds = (P50, P99).index(measure), results.kinds
    paper = [published.HEADLINE[kind][quantile] for kind in kinds]
    others = max(1, len(paper) - 1)
    guesses = (
        [results.change(results.cells("main", kind=kind), BAND, BEST, measure).mean for kind in kinds],
        [published.against_best(*kind, "ELDR", quantile) for kind in kinds],
        [(sum(paper) - one) / others for one in paper],
    )
    ours, artifact, constant = (math.dist(guess, paper) / math.sqrt(len(paper)) for guess in guesses)
    return ours, artifact, constant
