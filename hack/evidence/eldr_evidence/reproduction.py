"""Rows of the main table: our number, the published ones, a verdict, and why."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

from eldr_evidence import published
from eldr_evidence.cells import BAND, FORMS, MIN2, TOP1, VANILLA
from eldr_evidence.intervals import Interval
from eldr_evidence.names import place
from eldr_evidence.results import BEST, P50, P99, STEP_EXPERTS, Results
from eldr_evidence.verdicts import Verdict, judge

_RE_FITTED = "the artifact's band re-fits its centroids all the time, ours keeps the first ones; published runs are single ones"
_FOREIGN = (
    "preferences of experts were set once, for Qwen3-30B: this model's experts probably tell such kinds less apart "
    "(measured, Domain brings less as well)"
)
_ALL_EXPERTS = "the law of this model leaves nothing beside the experts, so that each one saved counts too much; preferences were set for Qwen3-30B"
_MENDED = (
    "the artifact's band re-fits its centroids all the time, which mends crowded clusters; here nothing does"
)
_CROWDED = "nothing relieves a crowded engine here: neither a second candidate nor a re-fit"
_NOTHING = "these seeds do not tell ours from no effect"
_DIFFERS = {"qwen3-30b": _RE_FITTED, "gpt-oss-120b": _FOREIGN, "gemma-4-26b": _ALL_EXPERTS}


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


def _row(  # noqa: PLR0917 - the columns, in their order
    what: str, ours: Interval, low: float, high: float, text: str, why: dict[Verdict, str]
) -> Row:
    verdict = judge(ours, low, high)
    if verdict is Verdict.NOT and ours.low <= 0 <= ours.high:
        return Row(what, ours, low, high, text, verdict, _NOTHING)
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
                why = dict.fromkeys(Verdict, _DIFFERS[geometry]) | {
                    Verdict.REPRODUCED: "",
                    Verdict.WEAKER: _RE_FITTED,
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
                {Verdict.WEAKER: "fewer experts a token than Qwen3-30B, for which preferences were set" if geometry != "qwen3-30b" else ""},
            )  # fmt: skip
    kinds = [kind for kind in results.kinds("main") if kind[0] != "gemma-4-26b"]
    for name in FORMS:
        if name not in published.RHO:
            continue
        ours = results.mean_fact(kinds, operator.itemgetter(f"rho {name}"))
        number = published.RHO[name]
        verdict = judge(ours, number, number, least=0.05)
        text = f"{number:.2f} (paper, mean)"
        yield Row(f"rho of {name.replace('_', ' x ')}, mean over models and workloads", ours, number, number, text, verdict,
                  "nearly every prompt uses nearly every expert here: that alone says little" if verdict is not Verdict.REPRODUCED else "", 2)  # fmt: skip
    ours = results.mean_fact(kinds, lambda facts: 100 * (facts["rho counts_idf"] - facts["rho counts"]))
    why = {
        Verdict.NOT: "nearly every prompt uses nearly every expert here: rarity says little; the fit weighs only where rho rises",
        Verdict.WEAKER: "nearly every prompt uses nearly every expert here: rarity says little",
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
    gain = results.mean_fact(kinds, operator.itemgetter("mask gain counts_idf"))
    low, high = published.MASK_GAIN
    verdict = judge(gain, low, high, least=0.0)
    yield Row("rho of the chosen layers above all layers, counts x idf", gain, low, high, f"{low:+.3f} .. {high:+.3f} (paper)", verdict,
              "8 layers, drawn alike, leave little to choose among" if verdict is not Verdict.REPRODUCED else "", 3)  # fmt: skip


def _pools(results: Results) -> Iterator[Row]:
    for cell in results.cells("pool", "task"):
        number = published.POOLS.get(cell.engines)
        if number is not None:
            yield _row(
                f"{place(cell.geometry, 'task')}, {cell.engines} engines: band, P50 against JSQ",
                results.change([cell], BAND, "JSQ", P50), number, number, f"{number:+.1f} (paper)",
                {Verdict.STRONGER: "at 60 requests/s on 16 engines, where the artifact's band gains most as well; the paper's load is not known to us"},
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
                dict.fromkeys(Verdict, _MENDED) | {Verdict.REPRODUCED: ""},
            )  # fmt: skip
    for policy, name, number in (
        (VANILLA, "plain K-means", published.VANILLA_WORST_P99),
        (TOP1, "tau = 0", published.TOP1_WORST_P99),
    ):
        worst, where = max(
            ((results.change([cell], policy, BEST, P99), cell) for cell in results.cells("main")),
            key=lambda one: one[0].mean,
        )
        yield _row(
            f"{name}: worst P99 of all cells against the best balancer ({place(where.geometry, where.workload)}, {where.rate:.0f} requests/s)",
            worst, number, number, f"{number:+.1f} (paper)", {Verdict.STRONGER: _CROWDED},
        )  # fmt: skip
