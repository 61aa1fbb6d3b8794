"""What placement saves where engines draft 0, 1 and 3 tokens in each step, by model and kind of traffic: writes docs/benchmarks/drafts.md.

make -C hack/lab bench-drafts
"""

from __future__ import annotations

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eldr.simulate.drafts import Drafts
from eldr.simulate.engine import Limits
from eldr.simulate.step_times import STEP_TIMES as LAWS
from eldr_bench.machine import ROOT, load_before, revision
from eldr_bench.page import measured
from eldr_bench.proof import require
from eldr_lab.evidence.cells import GEOMETRIES, JSQ, PRIOR, strengths
from eldr_lab.evidence.running import MOST
from eldr_lab.report import filled, interval, table
from eldr_lab.synthetic.activations import Synthetic
from eldr_lab.synthetic.contenders import parse_contender
from eldr_lab.synthetic.measures import Measures
from eldr_lab.synthetic.setting import Setting
from eldr_lab.synthetic.study import meet, prepare, run_one

PAGE = ROOT / "docs" / "benchmarks" / "drafts.md"
MODELS = "qwen3-30b", "gpt-oss-120b", "gemma-4-26b"
RATE, LOAD = "rate", "batch"
CASES = (Drafts(), RATE), *itertools.product((Drafts(1, 0.85), Drafts(3, 0.6)), (RATE, LOAD))
"""How engines draft, and what is as without drafts."""
ENGINES, BATCH, SECONDS, TOKENS, SEEDS = 8, 32.0, 40.0, 512, 8


class Case(NamedTuple):
    """What runs in one process: the same requests for all of ``CASES``."""

    model: str
    workload: str
    seed: int


def run(case: Case) -> list[tuple[Measures, Measures]]:
    """Return what JSQ and the default measured in each of ``CASES``."""
    contenders = [parse_contender(name) for name in (JSQ, PRIOR)]
    source = Synthetic(strengths(case.workload, case.model), GEOMETRIES[case.model])
    prepared = prepare(source, case.seed, [ENGINES], contenders)
    setting = Setting(
        engines=ENGINES, rate=None, batch=BATCH, step_time=LAWS[f"{case.model}-mi300x"], speeds=(1.0,),
        limits=Limits(MOST), seconds=SECONDS, output_tokens=TOKENS, sampled=False,
    )  # fmt: skip
    rate = setting.operating_point(prepared.population, case.seed).rate
    found = []
    for drafts, same in CASES:
        drafting = replace(setting, rate=rate if same == RATE else None, drafts=drafts)
        load = meet(prepared, drafting)
        jsq, default = (run_one(prepared, drafting, one, load) for one in contenders)
        require(default.active_per_token != jsq.active_per_token, f"{case}: both placed every request alike")
        require(
            load.workload.per_step == drafts.per_step,
            f"{case}: steps generate {load.workload.per_step} tokens",
        )
        found.append((jsq, default))
    return found


def change(pairs: list[tuple[Measures, Measures]], name: str) -> str:
    """Return by how many percent the default changes a measure, with its interval over the seeds."""
    return str(interval([100 * (getattr(one, name) / getattr(jsq, name) - 1) for jsq, one in pairs]))


def main() -> None:
    """Simulate, and write the page."""
    conditions = f"{revision()}, {load_before()}"
    kinds = list(itertools.product(MODELS, ("task", "language")))
    cases = [Case(*kind, seed) for kind in kinds for seed in range(SEEDS)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(cases, pool.map(run, cases), strict=True))
    rows = []
    for kind, (at, (drafts, same)) in itertools.product(kinds, enumerate(CASES)):
        pairs = [found[Case(*kind, seed)][at] for seed in range(SEEDS)]
        means = np.mean([(jsq.batch, jsq.active_per_token, 1e3 * jsq.tpot_mean) for jsq, _ in pairs], 0)
        before = (f"{mean:.1f}" for mean in means)
        changes = (change(pairs, name) for name in ("active_per_token", "tpot_mean", "tpot_p99"))
        rows.append((*kind, str(drafts.tokens), f"{drafts.per_step:.2f}", same, *before, *changes))
    head = (
        *("model", "traffic", "drafts", "tokens a step", "same", "batch", "experts", "TPOT, ms"),
        *("experts, default", "TPOT mean", "TPOT P99"),
    )
    text = filled(
        Path(__file__).with_name("templates") / "drafts.txt", engines=ENGINES, tokens=TOKENS, seconds=SECONDS, batch=BATCH,
        prior=PRIOR, seeds=SEEDS, conditions=measured(conditions), table=table(head, rows),
    )  # fmt: skip
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
