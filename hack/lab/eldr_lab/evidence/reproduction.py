"""Published numbers beside ours: one row each."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

from eldr_lab.evidence import published, sweeps
from eldr_lab.evidence.cells import (
    BAND,
    ROLLING,
    TOP1,
    VANILLA,
    Cell,
)
from eldr_lab.evidence.further import further
from eldr_lab.evidence.intervals import Interval
from eldr_lab.evidence.names import place, policy
from eldr_lab.evidence.results import BEST, P50, P99, STEP_EXPERTS, Results
from eldr_lab.evidence.rows import Row, row
from eldr_lab.evidence.verdicts import Verdict, judge

_QUANTILES = ((0, P50, "P50"), (1, P99, "P99"))
_CROWDED = "nothing relieves a crowded engine here: neither a second candidate nor a refit"
_EVERYWHERE = "nearly every prompt uses nearly every expert here: rarity says little"


def rows(results: Results) -> list[Row]:
    """Return every row that the results carry."""
    return [
        *_headline(results),
        *_domain(results),
        *_experts(results),
        *_mathematics(results),
        *_pools(results),
        *_ablations(results),
        *further(results),
    ]


def pooled(results: Results) -> list[tuple[int, list[Cell]]]:
    """Return the cells of the paper's pools of several sizes, by size."""
    known = results.cells("pool")
    kinds = {(cell.workload, cell.geometry) for cell in known}
    known += [cell for kind in kinds for cell in results.cells("main", *kind)]
    sizes = sorted({cell.engines for cell in known})
    return [(size, [cell for cell in known if cell.engines == size]) for size in sizes]


def _headline(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        paper = published.HEADLINE[geometry, workload]
        for quantile, measure, title in _QUANTILES:
            artifact = published.against_best(geometry, workload, "ELDR", quantile)
            # two candidates and refits are what the artifact measured, the plain band what the paper's text describes
            for name, number, source in ((BAND, paper[quantile], "paper"), (ROLLING, artifact, "artifact")):
                yield row(
                    f"{place(geometry, workload)}: {policy(name)}, {title} against the best balancer",
                    results.change(cells, name, BEST, measure), number, number, f"{number:+.1f} ({source})",
                    {},
                )  # fmt: skip


def _domain(results: Results) -> Iterator[Row]:
    """Yield what labels alone bring: P50 on the task workload is what the strength of preference was tuned to."""
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        for quantile, measure, title in _QUANTILES:
            number = published.against_best(geometry, workload, "Domain", quantile)
            yield row(
                f"{place(geometry, workload)}: Domain, {title} against the best balancer",
                results.change(cells, "Domain", BEST, measure), number, number, f"{number:+.1f} (artifact)", {},
                tuned=workload == "task" and measure == P50,
            )  # fmt: skip
    cells = results.cells("main", "task")
    known = published.DOMAIN
    yield row(
        "all models, task: Domain, P50 against the best balancer, mean", results.change(cells, "Domain", BEST, P50),
        known.low, known.high, str(known), {}, tuned=True,
    )  # fmt: skip
    for quantile, measure, title in _QUANTILES:
        known = published.BEYOND_DOMAIN[quantile]
        yield row(
            f"all models, task: band, {title} against Domain, mean", results.change(cells, BAND, "Domain", measure),
            known.low, known.high, str(known), {},
        )  # fmt: skip


def _experts(results: Results) -> Iterator[Row]:
    geometry = results.kinds("main")[0][0]
    cells = results.cells("main", "task", geometry)
    yield row(
        f"{place(geometry, 'task')}: active experts of the band's steps against round robin",
        results.change(cells, BAND, "RoundRobin", STEP_EXPERTS),
        published.ACTIVE.low, published.ACTIVE.high, str(published.ACTIVE), {},
    )  # fmt: skip


def _mathematics(results: Results) -> Iterator[Row]:
    kinds = results.kinds("main")
    for workload, known in published.UNIONS.items():
        ours = results.mean_fact([kind for kind in kinds if kind[1] == workload], _union)
        yield row(
            f"all models, {workload}: experts of 8, 16 and 32 requests of one kind against a mixed batch, mean",
            ours, known.low, known.high, str(known), {}, tuned=True,
        )  # fmt: skip
    for name, number in published.RHO.items():
        if name != "probability":  # counts tell no gate scores
            ours = results.mean_fact(kinds, operator.itemgetter(f"rho {name}"))
            yield _rho(f"rho of {name.replace('_', ' x ')}, mean over models and workloads", ours, (number, number),
                       f"{number:.2f} (paper, mean)", _EVERYWHERE, least=0.05, decimals=2, tuned=name == "counts_idf")  # fmt: skip
    ours = results.mean_fact(kinds, lambda facts: 100 * (facts["rho counts_idf"] - facts["rho counts"]))
    number = published.IDF_GAIN
    yield row(
        "points of rho that idf adds to counts, mean", ours, number, number, f"{number:+.1f} (paper, mean)",
        {Verdict.NOT: _EVERYWHERE, Verdict.UNDERSTATED: _EVERYWHERE},
    )  # fmt: skip
    gain = results.mean_fact(kinds, operator.itemgetter("mask gain counts_idf"))
    low, high = published.MASK_GAIN
    yield _rho("rho of the chosen layers above all layers, counts x idf", gain, (low, high), f"{low:+.3f} .. {high:+.3f} (paper)",
               "8 layers, drawn alike, leave little to choose among", least=0.0, decimals=3)  # fmt: skip
    found = results.mean_fact(kinds, operator.itemgetter("correlation of kinds"))
    span = published.CORRELATION
    yield _rho("correlation of an expert's use by prompts and by decode steps, pooled by kind, mean", found, (span.low, span.high),
               f"{span.low:.2f} .. {span.high:.2f} ({span.source})", "expected use, without the noise of single steps", least=0.02, decimals=2)  # fmt: skip


def _union(facts: dict[str, float]) -> float:
    return sum(facts[f"union {batch}"] for batch in (8, 16, 32)) / 3


def _rho(
    what: str,
    ours: Interval,
    span: Sequence[float],
    text: str,
    why: str,
    *,
    least: float,
    decimals: int,
    tuned: bool = False,
) -> Row:
    """Return a row of a correlation, which has a tolerance of its own."""
    verdict = judge(ours, *span, least=least)
    reason = "" if verdict is Verdict.REPRODUCED else why
    return Row(what, ours, span[0], span[1], text, verdict, reason, decimals, tuned=tuned)


def _pools(results: Results) -> Iterator[Row]:
    for size, cells in pooled(results):
        for quantile, measure, title in _QUANTILES:
            if size in published.POOLS:
                number = published.POOLS[size][quantile]
                yield row(
                    f"{place(cells[0].geometry, cells[0].workload)}, {size} engines: band, {title} against round robin",
                    results.change(cells, BAND, "RoundRobin", measure), number, number, f"{number:+.1f} (paper, Table 2)", {},
                )  # fmt: skip


def _ablations(results: Results) -> Iterator[Row]:
    yield from sweeps.rows(results)
    yield _worst_tail(results, VANILLA, published.VANILLA_WORST_P99)
    yield from top1(results)


def top1(results: Results) -> Iterator[Row]:
    """Yield P99 of the band with tau = 0, in the cells that the paper names."""
    for kind in results.kinds("main"):
        if kind in published.TOP1_P99:
            geometry, workload = kind
            number = published.TOP1_P99[kind]
            yield row(
                f"{place(*kind)}: {policy(TOP1)}, P99 against the best balancer",
                results.change(results.cells("main", workload, geometry), TOP1, BEST, P99),
                number, number, f"{number:+.1f} (paper)", {Verdict.OVERSTATED: _CROWDED},
            )  # fmt: skip


def _worst_tail(results: Results, name: str, number: float) -> Row:
    """Return the worst P99 by model and workload, over the rates: the cells that the paper counts."""
    worst, (geometry, workload) = max(
        (
            (results.change(results.cells("main", workload, geometry), name, BEST, P99), (geometry, workload))
            for geometry, workload in results.kinds("main")
        ),
        key=lambda found: found[0].mean,
    )
    return row(
        f"{policy(name)}: worst P99 of a model and workload against the best balancer, mean over rates ({place(geometry, workload)})",
        worst, number, number, f"{number:+.1f} (paper)", {Verdict.OVERSTATED: _CROWDED},
    )  # fmt: skip
