"""Rows of the main table: our number, the published ones, a verdict, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from eldr_evidence import published
from eldr_evidence.cells import BAND, FORMS, MIN2, TOP1, VANILLA
from eldr_evidence.intervals import Interval
from eldr_evidence.names import place
from eldr_evidence.results import BEST, P50, P99, STEP_EXPERTS, Results
from eldr_evidence.verdicts import Verdict, judge

_SINGLE = (
    "published runs are single ones; their band re-fits its centroids all the time, ours keeps the first ones"
)
_FOREIGN = "strengths of experts' preferences were set once for all models; this model's experts tell these kinds less apart"
_EXPECTED = "expected unions and a straight line for the step time hold less noise than an accelerator"
_FIXED_CENTROIDS = (
    "their band re-fits its centroids all the time, which mends clusters; the paper's text is of fixed ones"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One published number and ours."""

    what: str
    ours: Interval
    low: float
    high: float
    published: str
    verdict: Verdict
    why: str
    decimals: int = 1

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        mean, half = f"+.{self.decimals}f", f".{self.decimals}f"
        return self.what, self.ours.text(mean, half), self.published, self.verdict.value, self.why


def rows(results: Results) -> list[Row]:
    """Return every row that the results carry."""
    return [
        *_headline(results),
        *_experts(results),
        *_mathematics(results),
        *_pools(results),
        *_ablations(results),
    ]


def _row(what: str, ours: Interval, low: float, high: float, text: str, why: dict[Verdict, str]) -> Row:
    verdict = judge(ours, low, high)
    return Row(what, ours, low, high, text, verdict, why.get(verdict, ""))


def _headline(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        paper = published.HEADLINE[geometry, workload]
        for quantile, measure in enumerate((P50, P99)):
            artifact = published.against_best(geometry, workload, "ELDR", quantile)
            # min-2 is what the artifact measured, the plain band what the paper's text describes
            for policy, number, source in ((BAND, paper[quantile], "paper"), (MIN2, artifact, "artifact")):
                name = "band" if policy == BAND else "band, min-2"
                why = {
                    Verdict.STRONGER: _SINGLE if geometry == "qwen3-30b" else _FOREIGN,
                    Verdict.WEAKER: _SINGLE,
                    Verdict.NOT: _FOREIGN if number > 0 else _SINGLE,
                }
                yield _row(
                    f"{place(geometry, workload)}: {name}, P{(50, 99)[quantile]} against the best balancer",
                    results.change(cells, policy, BEST, measure), number, number, f"{number:+.1f} ({source})", why,
                )  # fmt: skip


def _experts(results: Results) -> Iterator[Row]:
    geometry = results.kinds("main")[0][0]
    cells = results.cells("main", "task", geometry)
    yield _row(
        f"{place(geometry, 'task')}: active experts of the band's steps against round robin",
        results.change(cells, BAND, "RoundRobin", STEP_EXPERTS),
        published.ACTIVE.low, published.ACTIVE.high, str(published.ACTIVE), {},
    )  # fmt: skip


def _mathematics(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        if geometry == "gemma-4-26b":
            continue  # its experts are Qwen3's in number: the same activations
        for batch in (8, 16, 32):
            known = published.UNIONS[workload]
            yield _row(
                f"{place(geometry, workload)}: experts of {batch} requests of one kind against a mixed batch",
                results.fact(geometry, workload, f"union {batch}"), known.low, known.high, str(known),
                {Verdict.STRONGER: "GPT-OSS takes fewer experts a token: likeness shows more" if geometry != "qwen3-30b" else ""},
            )  # fmt: skip
    kinds = [kind for kind in results.kinds("main") if kind[0] != "gemma-4-26b"]
    for name in FORMS:
        if name not in published.RHO:
            continue
        ours = _mean([results.fact(*kind, f"rho {name}") for kind in kinds])
        number = published.RHO[name]
        verdict = judge(ours, number, number, least=0.05)
        text = f"{number:.2f} (paper, mean)"
        yield Row(f"rho of {name.replace('_', ' x ')}, mean over models and workloads", ours, number, number, text, verdict,
                  "binary forgets how often: fewer prompt lengths differ here" if verdict is not Verdict.REPRODUCED else "", 2)  # fmt: skip
    gains = [
        100 * (results.fact(*kind, "rho counts_idf").mean - results.fact(*kind, "rho counts").mean)
        for kind in kinds
    ]
    ours = Interval(sum(gains) / len(gains), math.nan)
    why = {
        Verdict.NOT: "hardly an expert is rare in these prompts; the fit chooses by rho whether to weigh",
        Verdict.WEAKER: "hardly an expert is rare in these prompts",
    }
    number = published.IDF_GAIN
    yield _row(
        "points of rho that idf adds to counts, mean",
        ours,
        number,
        number,
        f"{number:+.1f} (paper, mean)",
        why,
    )
    gain = _mean([results.fact(*kind, "mask gain counts_idf") for kind in kinds])
    low, high = published.MASK_GAIN
    verdict = judge(gain, low, high, least=0.0)
    yield Row("rho of the chosen layers above all layers, counts x idf", gain, low, high, f"{low:+.3f} .. {high:+.3f} (paper)", verdict,
              "8 layers, drawn alike, leave little to choose among" if verdict is not Verdict.REPRODUCED else "", 3)  # fmt: skip


def _mean(found: list[Interval]) -> Interval:
    """Return the mean; half widths are averaged, as if all erred alike."""
    n = len(found)
    return Interval(sum(one.mean for one in found) / n, sum(one.half for one in found) / n)


def _pools(results: Results) -> Iterator[Row]:
    for cell in results.cells("pool", "task"):
        number = published.POOLS.get(cell.engines)
        if number is not None:
            yield _row(
                f"{place(cell.geometry, 'task')}, {cell.engines} engines: band, P50 against JSQ",
                results.change([cell], BAND, "JSQ", P50), number, number, f"{number:+.1f} (paper)",
                {Verdict.STRONGER: "load per engine is that of 60 requests/s on 16, where locality brings most"},
            )  # fmt: skip


def _ablations(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        cells = [cell for cell in results.cells("main", workload, geometry) if cell.rate == 60]
        known = published.ABLATED[geometry, workload]
        for quantile, measure in enumerate((P50, P99)):
            number = 100 * (known[VANILLA][quantile] / known["RoundRobin"][quantile] - 1)
            yield _row(
                f"{place(geometry, workload)}, 60 requests/s: plain K-means, P{(50, 99)[quantile]} against round robin",
                results.change(cells, VANILLA, "RoundRobin", measure), number, number, f"{number:+.1f} (artifact)",
                dict.fromkeys(Verdict, _FIXED_CENTROIDS) | {Verdict.REPRODUCED: ""},
            )  # fmt: skip
    for policy, name, number in (
        (VANILLA, "plain K-means", published.VANILLA_WORST_P99),
        (TOP1, "tau = 0", published.TOP1_WORST_P99),
    ):
        worst = max(
            (results.change([cell], policy, BEST, P99) for cell in results.cells("main")),
            key=lambda one: one.mean,
        )
        yield _row(
            f"{name}: worst P99 of all cells against the best balancer", worst, number, number, f"{number:+.1f} (paper)",
            {Verdict.STRONGER: "at low load one favoured engine is long over when others idle", Verdict.WEAKER: _EXPECTED},
        )  # fmt: skip
