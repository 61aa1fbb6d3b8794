"""The rows of the main table."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from eldr_lab.evidence import published
from eldr_lab.evidence.cells import BAND, FORMS, ROLLING, ROLLING_VANILLA, TOP1, VANILLA
from eldr_lab.evidence.further import further
from eldr_lab.evidence.names import place, policy
from eldr_lab.evidence.results import BEST, P50, P99, STEP_EXPERTS, Results
from eldr_lab.evidence.rows import Row, row
from eldr_lab.evidence.verdicts import Verdict, judge

_SINGLE = "published runs are single ones"
_FOREIGN = (
    "preferences of experts were set once, for Qwen3-30B: this model's experts probably tell such kinds less apart "
    "(measured, Domain brings less as well)"
)
_ALL_EXPERTS = "the law of this model leaves nothing beside the experts, so that each one saved counts too much; preferences were set for Qwen3-30B"
_CROWDED = "nothing relieves a crowded engine here: neither a second candidate nor a re-fit"
_DIFFERS = {"qwen3-30b": _SINGLE, "gpt-oss-120b": _FOREIGN, "gemma-4-26b": _ALL_EXPERTS}


def _reasons(geometry: str) -> dict[Verdict, str]:
    """Return why a model's numbers may differ: what makes ours larger is no reason for smaller ones."""
    return dict.fromkeys(Verdict, _DIFFERS[geometry]) | {Verdict.REPRODUCED: "", Verdict.WEAKER: _SINGLE}


def rows(results: Results) -> list[Row]:
    """Return every row that the results carry."""
    return [
        *_headline(results),
        *_experts(results),
        *_mathematics(results),
        *_pools(results),
        *_ablations(results),
        *further(results),
    ]


def _headline(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        paper = published.HEADLINE[geometry, workload]
        for quantile, measure in enumerate((P50, P99)):
            artifact = published.against_best(geometry, workload, "ELDR", quantile)
            # two candidates and re-fits are what the artifact measured, the plain band what the paper's text describes
            for name, number, source in ((BAND, paper[quantile], "paper"), (ROLLING, artifact, "artifact")):
                yield row(
                    f"{place(geometry, workload)}: {policy(name)}, P{(50, 99)[quantile]} against the best balancer",
                    results.change(cells, name, BEST, measure), number, number, f"{number:+.1f} ({source})", _reasons(geometry),
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
    for geometry, workload in results.kinds("main"):
        if geometry == "gemma-4-26b":
            continue  # its experts are Qwen3's in number: the same activations
        for batch in (8, 16, 32):
            known = published.UNIONS[workload]
            yield row(
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
    yield row(
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
            yield row(
                f"{place(cell.geometry, 'task')}, {cell.engines} engines: band, P50 against JSQ",
                results.change([cell], BAND, "JSQ", P50), number, number, f"{number:+.1f} (paper)",
                {Verdict.STRONGER: "at 60 requests/s on 16 engines, where the artifact's band gains most as well; the paper's load is not known to us"},
            )  # fmt: skip


def _ablations(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        cells = results.cells("clusters", workload, geometry)
        for quantile, measure in enumerate((P50, P99)):
            number = published.ablated(geometry, workload, VANILLA, quantile)
            yield row(
                f"{place(geometry, workload)}, 60 requests/s: {policy(ROLLING_VANILLA)}, P{(50, 99)[quantile]} against round robin",
                results.change(cells, ROLLING_VANILLA, "RoundRobin", measure), number, number, f"{number:+.1f} (artifact)",
                _reasons(geometry),
            )  # fmt: skip
    for one, name, number in (
        (VANILLA, "plain K-means", published.VANILLA_WORST_P99),
        (TOP1, "tau = 0", published.TOP1_WORST_P99),
    ):
        worst, where = max(
            ((results.change([cell], one, BEST, P99), cell) for cell in results.cells("main")),
            key=lambda found: found[0].mean,
        )
        yield row(
            f"{name}: worst P99 of all cells against the best balancer ({place(where.geometry, where.workload)}, {where.rate:.0f} requests/s)",
            worst, number, number, f"{number:+.1f} (paper)", {Verdict.STRONGER: _CROWDED},
        )  # fmt: skip
