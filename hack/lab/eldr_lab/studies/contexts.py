"""What it is worth to count the context of requests, in traffic of 1k and 64k prompts: docs/benchmarks/contexts.md.

    python -m eldr_lab.studies.contexts [--seeds 5] [--jobs 2] [--again]

All policies of a seed meet the same requests.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from eldr.contract import POLICY_MARGINAL
from eldr.core.policies import make_policy
from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.simulate.workload import Times, poisson
from eldr_bench.machine import ROOT
from eldr_lab.pool.kv import Found, KvEngine, KvRouter, Seeing, Workload, serve
from eldr_lab.report import Interval, changes, filled, interval, table
from eldr_lab.synthetic.activations import QWEN3_30B, WORKLOADS, Synthetic
from eldr_lab.synthetic.active import active_experts
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.routers import Knowledge
from eldr_lab.synthetic.workload import draw_labels, draw_records
from eldr_router.engines.kv_room import KvCache

PAGE = ROOT / "docs" / "benchmarks" / "contexts.md"
FIGURES = PAGE.with_suffix(".json")
FIRST_SEED = 400
"""No constant was chosen under this seed, or a later one."""
ENGINES = 8
SHORT, LONG, SPREAD = 1000, 64_000, 0.1
ANSWER, ANSWER_SPREAD, LONGEST = 250, 0.6, 2048
"""Tokens of prompts and of answers, log-normal: medians and standard deviations of their logarithms."""
TYPICAL = 406
"""Tokens that a request of the published runs holds in the mean: a prompt of 150, half of an answer of 512."""
PER_TOKEN = QWEN3_30B_MI300X.per_request / TYPICAL
LAW = StepTime(QWEN3_30B_MI300X.fixed, QWEN3_30B_MI300X.per_expert, 0.0, 128, PER_TOKEN)
"""The published step time, whose cost of a request is that of its context: 30 ns a token of 96 KiB, 3.3 TB/s."""
RECOMPUTE = 2e-5
"""Seconds of a token that is computed again, as of the simulated engine's prefill."""
BEGIN, END = 40.0, 80.0
_BATCH = 16
"""Requests by which it is told what one takes beside its context."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to place.

    Attributes
    ----------
    name : str
    counts : bool
        Whether tokens count in the load.
    refuses : bool
        Whether engines without room are no candidates.
    knows : bool
        Whether its step-time model has a term for context. If not, the pool's mean context is in what a request costs, and JSQ
        counts sequences alone.
    """

    name: str
    counts: bool = True
    refuses: bool = True
    knows: bool = False


POLICIES = {
    "JSQ, requests only": Policy("JSQ", counts=False, refuses=False),
    "JSQ": Policy("JSQ"),
    "JSQ, context known": Policy("JSQ", knows=True),
    "default, requests only": Policy(POLICY_MARGINAL, counts=False, refuses=False),
    "default": Policy(POLICY_MARGINAL),
    "default, context known": Policy(POLICY_MARGINAL, knows=True),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A pool under a load: tokens of each KV cache, the share of long prompts, requests per second."""

    capacity: int
    share: float
    rate: float

    @property
    def key(self) -> str:
        """What figures of it are found by."""
        return ",".join(map(str, asdict(self).values()))


CASES = (
    *(Case(112_000, 0.05, rate) for rate in (10.0, 16.0, 20.0)),
    *(Case(670_000, 0.2, rate) for rate in (14.0, 20.0, 26.0, 30.0)),
    *(Case(670_000, 0.02, rate) for rate in (40.0, 60.0)),
    Case(670_000, 0.0, 60.0),
    *(Case(28_000, 0.0, rate) for rate in (24.0, 28.0)),
)
"""A card of 80 GB has room for 112,000 tokens beside the model's weights, one of 141 GB for 670,000; 28,000 are full of short requests."""
PLAIN, JSQ = "default, requests only", "JSQ, requests only"
_COLUMNS = (
    ("preemptions / 1000", "preemptions", 1.0, ".1f"),
    ("refused at least once / 1000", "refused", 1.0, ".1f"),
    ("TPOT P50, ms", "tpot_p50", 1e3, ".1f"),
    ("P99", "tpot_p99", 1e3, ".1f"),
    ("first token P99, short, s", "short_p99", 1.0, ".2f"),
    ("long, s", "long_p99", 1.0, ".2f"),
    ("latency P50, s", "latency_p50", 1.0, ".2f"),
    ("P99", "latency_p99", 1.0, ".1f"),
)
_CHANGES = ("tpot_mean", "tpot_p50", "tpot_p99", "latency_p50", "latency_p99")
Figures = dict[str, dict[str, dict[str, dict[str, float]]]]
"""By case, seed, policy and quantity."""


def traffic(population: Population, case: Case, seed: int, end: float) -> Workload:
    """Draw requests."""
    ready = poisson(case.rate, end, np.random.default_rng([seed, 1]))
    rng = np.random.default_rng([seed, 2])
    n = len(ready)
    record = draw_records(population, draw_labels(population, n, rng), rng)
    median = np.where(rng.random(n) < case.share, LONG, SHORT)
    prompt = (median * rng.lognormal(0, SPREAD, n)).astype(np.int64)
    answers = rng.lognormal(np.log(ANSWER), ANSWER_SPREAD, n).astype(np.int64)
    return Workload(
        ready, record, prompt, np.clip(answers, 2, LONGEST), (ready >= BEGIN) & (ready < min(END, end))
    )


def token_cost(population: Population) -> float:
    """Return the sequences that a token counts as: what it takes of a step, over what a request takes for its experts."""
    used = active_experts(population, sampled=False)
    for record in range(_BATCH):
        used.join(record, 0)
    return LAW.per_token * _BATCH / (LAW.per_expert * used.count(0))


def run_one(population: Population, case: Case, policy: Policy, workload: Workload, seed: int) -> Found:
    """Run one policy."""
    engines = [
        KvEngine(LAW, active_experts(population, sampled=False), capacity=case.capacity, recompute=RECOMPUTE)
        for _ in range(ENGINES)
    ]
    held = case.share * LONG + (1 - case.share) * SHORT + ANSWER / 2
    law = LAW if policy.knows else StepTime(LAW.fixed, LAW.per_expert, LAW.per_token * held, LAW.n_experts)
    unions = policy.name == POLICY_MARGINAL
    router = KvRouter(
        Seeing(
            make_policy(policy.name),
            looks=policy.counts,
            token_cost=token_cost(population) if policy.knows else 0.0,
        ),
        Knowledge(population, [law] * ENGINES, None, unions, unions),
        seed,
        [KvCache(case.capacity, case.capacity)] * ENGINES,
        refuses=policy.refuses,
    )
    return serve(engines, router, workload, (BEGIN, END))


def measured(found: Found) -> dict[str, float]:
    """Return the quantities of one run: seconds, and what 1000 requests meet."""
    of_all = {
        "preemptions": 1000 * found.preemptions / len(found.prompt),
        "refused": 1000 * float(found.refused.mean()),
    }
    times = quantities(found.tpot, found.waited, found.latency, found.prompt >= LONG / 2)
    return {name: float(f"{value:.5g}") for name, value in (of_all | times).items()}


def job(case: Case, seed: int, requests: int = 2000, end: float = 1.5 * END) -> dict[str, dict[str, float]]:
    """Return what all policies measure in one case under one seed."""
    source = Synthetic(WORKLOADS["task"], QWEN3_30B, n_layers=4, calibration=64, requests=requests)
    population = source.traffic(seed).requests
    workload = traffic(population, case, seed, end)
    return {
        name: measured(run_one(population, case, policy, workload, seed)) for name, policy in POLICIES.items()
    }


def quantities(
    tpot: Times, waited: Times, latency: Times, is_long: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Return means and percentiles, seconds; those of long requests where there are any.

    Parameters
    ----------
    tpot, waited, latency : ndarray of float, shape (n,)
        Seconds between tokens, mean of each request; until its first token, and its last.
    is_long : ndarray of bool, shape (n,)
    """
    found = {"tpot_mean": float(tpot.mean())}
    for name, values in (
        ("short", waited[~is_long]),
        ("long", waited[is_long]),
        ("tpot", tpot),
        ("latency", latency),
    ):
        if len(values):
            found[f"{name}_p50"], found[f"{name}_p99"] = np.percentile(values, (50, 99)).tolist()
    return found


def page(figures: Figures) -> str:
    """Return the page."""
    order = [case.key for case in CASES]
    found = {
        key: figures[key]
        for key in sorted(figures, key=lambda key: order.index(key) if key in order else len(order))
    }
    seeds = sorted({int(seed) for case in found.values() for seed in case})
    return filled(
        Path(__file__).with_name("templates") / "contexts.txt", cells=len(found), first=seeds[0], last=seeds[-1], result=_result(found),
        against_jsq=_against(found, JSQ), against_default=_against(found, PLAIN), each="\n\n".join(_cells(found)),
    )  # fmt: skip


def _result(found: Figures) -> str:
    """Return, for each policy, the range over the cells of what clients notice."""
    rows, columns = [], (*_COLUMNS[:2], *_COLUMNS[4:6])
    for name in POLICIES:
        cells = []
        for _, what, unit, form in columns:
            values = [
                [unit * seed[name][what] for seed in case.values() if what in seed[name]]
                for case in found.values()
            ]
            means = [interval(some).mean for some in values if some]
            cells.append(f"{min(means):{form}} .. {max(means):{form}}")
        for what in ("tpot_p50", "tpot_p99"):
            means = [_change(case, name, JSQ, what).mean for case in found.values()]
            cells.append(f"{min(means):+.1f} .. {max(means):+.1f}")
        rows.append((name, *cells))
    titles = [title for title, *_ in columns]
    return table(("policy", *titles, "TPOT P50 against JSQ by requests only, %", "P99"), rows)


def _change(case: dict[str, dict[str, dict[str, float]]], name: str, base: str, what: str) -> Interval:
    return changes(*([seed[which][what] for seed in case.values()] for which in (name, base)))


def _where(key: str) -> str:
    capacity, share, rate = (float(part) for part in key.split(","))
    return f"{capacity / 1000:g}k tokens of KV, {100 * share:g} % long, {rate:g}/s"


def _against(found: Figures, base: str) -> str:
    """Return changes in percent, by case and policy."""
    rows = [
        (_where(key), name, *(str(_change(case, name, base, what)) for what in _CHANGES))
        for key, case in found.items()
        for name in POLICIES
        if name not in (JSQ, base) and not (base == PLAIN and name.startswith("JSQ"))
    ]
    return table(("where", "policy", "TPOT mean, %", "P50", "P99", "latency P50, %", "P99"), rows)


def _cells(found: Figures) -> Iterator[str]:
    for key, case in found.items():
        rows = []
        for name in POLICIES:
            cells = []
            for _, what, unit, form in _COLUMNS:
                values = [unit * seed[name][what] for seed in case.values() if what in seed[name]]
                cells.append(interval(values).text(form, form) if values else "-")
            rows.append((name, *cells))
        yield f"{_where(key)}:"
        yield table(("policy", *(title for title, *_ in _COLUMNS)), rows)


def run(todo: Sequence[tuple[Case, int]], jobs: int) -> Figures:
    """Run cases under seeds, several beside each other."""
    figures: Figures = {}
    with ProcessPoolExecutor(jobs) as executor:
        for (case, seed), found in zip(todo, executor.map(job, *zip(*todo, strict=True)), strict=True):
            figures.setdefault(case.key, {})[str(seed)] = found
            click.echo(f"{case.key}, seed {seed}", err=True)
    return figures


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(2), default=5, help="How many.")
@click.option("--jobs", type=click.IntRange(1), default=2, help="Processes.")
@click.option("--again", is_flag=True, help="Write the page from the last figures.")
def main(seeds: int, jobs: int, *, again: bool) -> None:
    """Simulate, and write the page."""
    if not again:
        todo = list(itertools.product(CASES, range(FIRST_SEED, FIRST_SEED + seeds)))
        FIGURES.write_text(
            json.dumps(run(todo, jobs), indent=None, separators=(",", ":"), sort_keys=True) + "\n"
        )
    PAGE.write_text(page(json.loads(FIGURES.read_text())))


if __name__ == "__main__":
    main()
