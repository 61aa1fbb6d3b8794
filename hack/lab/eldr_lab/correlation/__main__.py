"""Measure how well prompts predict the experts of decode steps, with the small trained model, on text that it never saw.

Writes docs/benchmarks/correlation.md and correlation.json beside it. Generation runs in the environment of ``hack/vllm/install`` (made
on first use), the statistics here.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from eldr_bench.machine import ROOT, cpu_model, vllm_environment
from eldr_lab.correlation import forms
from eldr_lab.correlation import statistics as maths
from eldr_lab.synthetic.pairs import Change, change
from eldr_tiny_moe import corpus
from eldr_tiny_moe.client import MODEL, run_in

LAB = ROOT / "hack" / "lab"
PAGE = ROOT / "docs" / "benchmarks" / "correlation.md"
RESULT = PAGE.with_suffix(".json")
SEED = 0
LENGTHS = (32, 64, 128, 256)
PER_LENGTH = 16
"""Requests of each kind and prompt length."""
TOKENS = 64
BATCHES = (8, 16, 32)
DECODINGS: Mapping[str, float] = {"greedy": 0.0, "sampled, temperature 0.8": 0.8}
KNOWN_TEXT = "licence"
"""The one kind that the model saw in training."""
FEWEST_KINDS = 4
PAPER = {"counts x idf": "0.76", "binary": "0.47", "counts": "about 0.745", "gate probability": "0.67"}
MEASURES = ("tpot_p50", "tpot_p99", "active_per_token")
SEEDS = range(10)
"""Of the simulated pools."""


def chosen_kinds(texts: Mapping[str, corpus.Text]) -> list[str]:
    """Return the kinds that are real and unseen; generated ones, which are too easy to tell apart, only to make up four."""
    unseen = [kind for kind in texts if kind != KNOWN_TEXT]
    unseen.sort(key=lambda kind: texts[kind].generated)
    real = sum(not texts[kind].generated for kind in unseen)
    return sorted(unseen[: max(real, FEWEST_KINDS)])


def requests(texts: Mapping[str, corpus.Text], kinds: list[str]) -> bytes:
    """Return the input of ``capture``."""
    prompts = corpus.Prompts(texts, SEED)
    lines = [
        json.dumps({"kind": kind, "text": prompts.characters(kind, 16 * n), "tokens": n})
        for kind in kinds
        for n in LENGTHS
        for _ in range(PER_LENGTH)
    ]
    return "\n".join(lines).encode()


def capture(environment: Path, lines: bytes, temperature: float) -> maths.Capture:
    """Generate, and return the activations."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "capture.npz"
        options = ("--tokens", str(TOKENS), "--temperature", str(temperature), "--seed", str(SEED))
        with run_in(
            environment, "eldr_lab.correlation.capture", str(MODEL), str(out), *options, paths=(LAB,)
        ) as process:
            process.communicate(lines)
        if process.returncode:
            raise SystemExit(f"capture failed with status {process.returncode}, see above")
        with np.load(out) as arrays:
            return maths.Capture(**{field.name: arrays[field.name] for field in fields(maths.Capture)})


def measure(found: maths.Capture) -> dict[str, Any]:
    """Return all figures of one capture."""
    rng = np.random.default_rng(SEED)
    requests = maths.request_correlations(found)
    return {
        "requests": len(requests),
        "request": [float(q) for q in np.percentile(requests, (50, 5, 25, 75, 95))],
        "request_by_kind": {kind: float(np.median(requests[members])) for kind, members in found.kinds()},
        "strangers": float(np.median(maths.stranger_correlations(found, rng))),
        "kind": maths.kind_correlations(found),
        "forms": {name: asdict(rho) for name, rho in forms.correlations(found, rng).items()},
        "pools": {
            name: {measure: [getattr(one, measure) for one in runs] for measure in MEASURES}
            for name, runs in forms.in_pools(found, SEEDS).items()
        },
        "unions": {str(size): asdict(maths.unions(found, size, rng)) for size in BATCHES},
        "experts": found.prefill.shape[2],
        "touched": float((found.prefill > 0).mean()),
    }


def page(results: Mapping[str, dict[str, Any]], texts: Mapping[str, corpus.Text], kinds: list[str]) -> str:
    """Return the page."""
    names = list(results)
    columns = [results[name] for name in names]
    head = " | ".join(names)
    rule = "---|" * len(names)

    def row(label: str, cells: list[str], paper: str = "") -> str:
        return f"| {label} | {' | '.join(cells)} | {paper} |"

    median_row = row(
        "per request, median (5 % .. 95 %)",
        [f"{c['request'][0]:.2f} ({c['request'][1]:.2f} .. {c['request'][4]:.2f})" for c in columns],
    )
    rho = [
        row(
            name,
            [f"{c['forms'][name]['all']:.3f} / {c['forms'][name]['chosen']:.3f}" for c in columns],
            PAPER.get(name, ""),
        )
        for name in columns[0]["forms"]
    ]
    placed = [
        "| " + " | ".join([name, *(_placed(c["pools"], name) for c in columns)]) + " |"
        for name in columns[0]["forms"]
    ]
    by_kind = [
        "| "
        + " | ".join([kind, *(f"{c['request_by_kind'][kind]:.2f} / {c['kind'][kind]:.3f}" for c in columns)])
        + " |"
        for kind in kinds
    ]
    unions = []
    for size in map(str, BATCHES):
        cells = []
        for c in columns:
            u = c["unions"][size]
            cells.append(
                f"{u['same']:.1f} vs {u['mixed']:.1f}: **{100 * u['change']:+.1f} %** (± {196 * u['error']:.1f})"
            )
        unions.append(f"| {size} | {' | '.join(cells)} |")
    made_up = [kind for kind in kinds if texts[kind].generated]
    return f"""# How well a prompt predicts the experts of its decode steps

Written by `make -C hack/lab correlation` on {dt.datetime.now(tz=dt.UTC).date().isoformat()}: {cpu_model()}, {os.cpu_count()} cores, Linux {platform.release().split("-")[0]}.

- Model: [the small trained one](../../hack/tiny_moe/README.md), 4 layers of {columns[0]["experts"]} experts, top 4, by transformers in float32.
- {columns[0]["requests"]} requests of {len(kinds)} kinds ({", ".join(kinds)}{"; generated: " + ", ".join(made_up) if made_up else ""}), {len(LENGTHS) * PER_LENGTH} a kind. Seed {SEED}.
- Prompts have {", ".join(map(str, LENGTHS))} tokens, in equal shares. {TOKENS} tokens are generated; the {TOKENS - 1} that are fed back are counted.
- The texts are this machine's own, so another machine gets slightly other figures. They were not in the training set, though single manual pages and
  changelog entries may have been.

## Correlation

Pearson's over (layer, expert) cells between the counts of a prompt and of its decode steps.

| | {head} | paper |
|---|{rule}---|
{median_row}
{row("prompt of one kind, steps of another, median", [f"{c['strangers']:.2f}" for c in columns])}
{row("per kind, lowest .. highest", [f"{min(c['kind'].values()):.3f} .. {max(c['kind'].values()):.3f}" for c in columns])}

By kind, median per request / of the kind's summed counts:

| kind | {head} |
|---|{rule}
{chr(10).join(by_kind)}

## Forms of signatures

Spearman's rho between the pairwise cosine distances of prompt signatures and those of decode activations, {forms.PAIRS:,} pairs. Each cell has all layers / those
that are chosen greedily. The rows of the gate sum what it said of *every* expert over the prompt's tokens (probability: softmax over all experts;
logit: above the token's lowest).

| | {head} | paper |
|---|{rule}---|
{chr(10).join(rho)}

What each form saves with the band (`policy: ELDR`). Centroids come from half of these requests, drawn anew for each seed. A simulated pool serves the other half:
{forms.ENGINES} engines, batches of {forms.BATCH:.0f}, every step with the experts that it really used, step time of {forms.LAW}, {len(SEEDS)} seeds. TPOT P50 / P99 /
experts per token, % against JSQ, ± half of a 95 % interval over the seeds. Sums of logits are nearly alike for all prompts, so a band of
0.1 holds every engine, and load decides.

| | {head} |
|---|{rule}
{chr(10).join(placed)}

## Active experts of a batch

Distinct experts that one decode step of a batch loads, mean over layers. Batches of one kind are compared with batches drawn from all kinds,
{maths.ROUNDS} random ones each, with every request at a random step. ± is 1.96 standard errors over batches of these same requests.

| batch | {" | ".join(f"{name}: one kind vs mixed" for name in names)} |
|---|{rule}
{chr(10).join(unions)}

## Beside the paper

The paper ([arXiv 2607.00466](https://arxiv.org/abs/2607.00466)) finds rho 0.76 for counts x idf, 0.67 for gate probabilities and 0.47 for binary signatures.
These are means over its models and data sets, as our notes on its Figure 7 have them. We infer 0.745 for plain counts from "idf adds 1.5 points on average".

- Its models have 30 to 48 layers of 128 experts, ours has 4 of {columns[0]["experts"]}. So only the order can be compared: binary signatures are by far the worst in both.
- **Idf {_idf_verdict(columns)}**, so `eldr fit` keeps whichever of the two correlates better on the log at hand.
- A prompt here touches {100 * columns[0]["touched"]:.0f} % of all (layer, expert) cells, so having touched one says little. That is likely why binary signatures do worse than the paper's.
- The paper's 22 % fewer active experts than round robin (Qwen3-30B-A3B, task data set, placed by its router) cannot be compared with the difference above.
  That one is what perfect grouping by kind would give this model.
- Placed by counts x idf, the paper's P50 is on average three points below that by gate probabilities (its Figure 14). {_gate_verdict(columns)}
- Greedy text of so small a model repeats itself, which narrows the experts of its steps. The sampled column is nearer to real text.
"""


def _placed(pools: Mapping[str, Mapping[str, list[float]]], name: str) -> str:
    found = [change(pools[name][measure], pools["JSQ"][measure]) for measure in MEASURES]
    return " / ".join(map(_percent, found))


def _percent(change: Change) -> str:
    return f"{100 * change.mean:+.1f} ±{100 * change.half_width:.1f}"


def _gate_verdict(columns: list[dict[str, Any]]) -> str:
    told = []
    for name in ("counts x idf", "counts"):
        found = [
            change(c["pools"][name]["tpot_p50"], c["pools"]["gate probability"]["tpot_p50"]) for c in columns
        ]
        told.append(f"{name} {', '.join(map(_percent, found))} %")
    return f"Here, against gate probabilities: {'; '.join(told)}."


def _idf_verdict(columns: list[dict[str, Any]]) -> str:
    gains = [c["forms"]["counts x idf"]["all"] - c["forms"]["counts"]["all"] for c in columns]
    verb = "helps" if min(gains) > 0 else "does not help" if max(gains) <= 0 else "helps only sometimes"
    return f"{verb} here ({', '.join(f'{gain:+.3f}' for gain in gains)})"


def main() -> None:
    """Measure and write."""
    environment = vllm_environment()
    texts = corpus.load(seed=SEED)
    kinds = chosen_kinds(texts)
    lines = requests(texts, kinds)
    results = {}
    for name, temperature in DECODINGS.items():
        print(f"generating, {name}", file=sys.stderr, flush=True)
        results[name] = measure(capture(environment, lines, temperature))
    RESULT.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results, texts, kinds))
    print(f"wrote {PAGE.relative_to(ROOT)} and {RESULT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
