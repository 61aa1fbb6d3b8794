"""``python -m eldr_lab.evidence.balance_study``: expert-parallel engines, and which replica of an expert computes.

Writes docs/benchmarks/balance.json, which the document reads. Means over layers and steps of the experts on the fullest rank, one for each seed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.sim import traces
from eldr.simulate.engine import Limits
from eldr_bench.machine import ROOT
from eldr_bench.proof import require
from eldr_lab.evidence.cells import BAND, JSQ, PRIOR
from eldr_lab.evidence.draws import draw, mean, shares_of
from eldr_lab.evidence.layouts import layouts
from eldr_lab.pool.active import expert_shares
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.laws import DEEPSEEK_V3_MI300X, QWEN3_235B_MI300X, after
from eldr_lab.pool.models import GEOMETRIES
from eldr_lab.pool.replicas import Balance, Placing, Replicas, fullest, place
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.study import meet, prepare, run_one
from eldr_lab.synthetic.activations import WORKLOADS, Synthetic
from eldr_lab.synthetic.captured import Captured
from eldr_lab.synthetic.population import Population
from tests.support.metro import Placement
from tests.support.metro.baselines import active_set

FIGURES = ROOT / "docs" / "benchmarks" / "balance.json"
BATCHES = 8, 16, 32, 64, 128, 256, 512
RATIOS = 1.125, 1.25, 1.5
PLACINGS: tuple[Placing, ...] = "tokens", "activations"
BALANCES: tuple[Balance, ...] = "tokens", "greedy", "exact"
MEETING_BATCH = 32
KERNELS = 3
"""Of ours in an exchange; counted by tests/engine/test_launches.py."""
LAUNCH, COLLECTIVE, DECISION = (1e-6, 3e-6), (5e-6, 20e-6), (17e-6, 26e-6)
"""Seconds, at least and at most: to start a kernel of a graph and for a small sum over ranks, both assumed; for METRO's choice, as its
kernel takes by the paper. Ours decides in one warp: docs/benchmarks/gpu-kernels.md."""
EAGER_LAUNCH = 10e-6
"""To start a kernel without a graph, at most; assumed, too."""
LEAST, MOST = (
    KERNELS * launch + collective + decision
    for launch, collective, decision in zip(LAUNCH, COLLECTIVE, DECISION, strict=True)
)
"""What a whole exchange takes on each layer inside a graph, seconds."""
EAGER = MOST + KERNELS * (EAGER_LAUNCH - LAUNCH[1])
LOOKUP = 2e-6, 5e-6
"""What vLLM takes on each layer to look up where experts lie, once EPLB moves them: a kernel, seconds; assumed."""

Ids = npt.NDArray[np.int64]


class Model(NamedTuple):
    """A model on an engine: its ranks, the law of one of them by the engine's batch, its layers of experts, whose tokens ranks have."""

    ranks: int
    law: StepTime
    layers: int
    own_tokens: bool


MODELS = {
    # attention is data-parallel: a rank has an eighth of the engine's requests
    "qwen3-30b": Model(
        8, replace(QWEN3_30B_MI300X, per_request=QWEN3_30B_MI300X.per_request / 8), 48, own_tokens=True
    ),
    "qwen3-235b": Model(4, QWEN3_235B_MI300X, 94, own_tokens=False),
    "deepseek-v3": Model(8, DEEPSEEK_V3_MI300X, 58, own_tokens=True),
}
HIDDEN = {"qwen3-30b": 2048, "qwen3-235b": 4096, "deepseek-v3": 7168}
"""Numbers of 16 bits that a token's state has."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is drawn: layers that stand for all, batches of each cell, requests, seconds and tokens of a simulated pool."""

    layers: int
    draws: int
    requests: int
    seconds: float
    tokens: int


FULL = Size(4, 40, 800, 20.0, 128)
SMOKE = Size(1, 3, 120, 0.5, 8)


def as_printed(active: npt.NDArray[np.bool_], placement: Placement, order: Ids) -> int:
    """Return the fullest rank of the paper's algorithm as it is printed: all experts in arbitrary order."""
    load = [0] * placement.ranks
    for expert in order[active[order]].tolist():
        load[min(np.flatnonzero(placement.held[expert]).tolist(), key=load.__getitem__)] += 1
    return max(load)


def above_optimum(
    steps: Sequence[Ids], placed: Mapping[Placing, Sequence[Placement]], rng: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Return mean and largest ratio to the optimum of the greedy choice, and of the same in arbitrary order, as the paper prints it."""
    found: dict[str, tuple[float, float]] = {}
    for placing, placements in placed.items():
        ratios: dict[str, list[float]] = {"greedy": [], "as printed": []}
        for ids in steps:
            best, quick = (fullest(ids, placements, balance) for balance in ("exact", "greedy"))
            require((quick >= best).all(), "the greedy choice has fewer experts on a rank than the optimum")
            ratios["greedy"] += (quick / best).tolist()
            for layer, placement in enumerate(placements):
                active = active_set(ids[:, layer], placement.n_experts)
                other = as_printed(active, placement, rng.permutation(placement.n_experts))
                ratios["as printed"].append(other / int(best[layer]))
        found |= {
            f"{choice}, {placing}": (float(np.mean(values)), max(values)) for choice, values in ratios.items()
        }
    return found


def cells(name: str, population: Population, size: Size, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what every batch and replication of a model has on the fullest rank, under one seed."""
    ranks, own_tokens = MODELS[name].ranks, MODELS[name].own_tokens
    everyone = np.arange(len(population))
    shares = expert_shares(population)
    for batch in BATCHES:
        rng = np.random.default_rng([seed, batch])
        steps = draw(population, everyone, batch, size.draws, rng)
        none = {
            placing: mean(steps, place(shares, batch, ranks, 1.0, placing), "exact") for placing in PLACINGS
        }
        for ratio in RATIOS:
            found: dict[str, float] = {f"none, {placing}": value for placing, value in none.items()}
            placed = {placing: place(shares, batch, ranks, ratio, placing) for placing in PLACINGS}
            found |= {
                f"{balance}, {placing}": mean(steps, placements, balance, own_tokens=own_tokens)
                for placing, placements in placed.items()
                for balance in BALANCES
            }
            yield {
                "model": name,
                "batch": batch,
                "ratio": ratio,
                "seed": seed,
                "fullest": found,
                "above": above_optimum(steps[: max(3, size.draws // 4)], placed, rng),
            }


def greedy_on(population: Population, ranks: int, size: Size, seed: int) -> Iterator[dict[str, Any]]:
    """Yield how far the greedy choice is from the optimum on the captured activations, for every batch and replication."""
    everyone, shares = np.arange(len(population)), expert_shares(population)
    for batch in BATCHES:
        rng = np.random.default_rng([seed, ranks, batch])
        steps = draw(population, everyone, batch, max(3, size.draws // 4), rng)
        for ratio in RATIOS:
            placed = {placing: place(shares, batch, ranks, ratio, placing) for placing in PLACINGS}
            above = above_optimum(steps, placed, rng)
            yield {"ranks": ranks, "batch": batch, "ratio": ratio, "seed": seed, "above": above}


def meeting(
    name: str, population: Population, ranks: int, size: Size, seed: int, *, own_tokens: bool = False
) -> dict[str, Any]:
    """Return the fullest rank of mixed batches and of batches of one kind, without replicas and with METRO's choice.

    Experts are placed by what the engine's own requests use.
    """
    rng = np.random.default_rng([seed, ranks])
    kinds = [np.flatnonzero(population.label == label) for label in range(len(population.labels))]
    found: dict[str, float] = {}
    for where, groups in {"mixed": [np.arange(len(population))], "one kind": kinds}.items():
        values: dict[str, list[float]] = {"none": [], "vllm": [], "metro": []}
        for among in groups:
            steps = draw(population, among, MEETING_BATCH, max(3, size.draws // len(groups)), rng)
            shares = shares_of(population, among)
            by_tokens, ours = (place(shares, MEETING_BATCH, ranks, 1.25, placing) for placing in PLACINGS)
            values["none"].append(mean(steps, place(shares, MEETING_BATCH, ranks, 1.0, "tokens"), "exact"))
            values["vllm"].append(mean(steps, by_tokens, "tokens", own_tokens=own_tokens))
            values["metro"].append(mean(steps, ours, "exact"))
        found |= {f"{where}, {choice}": float(np.mean(numbers)) for choice, numbers in values.items()}
    return {"name": name, "ranks": ranks, "batch": MEETING_BATCH, "seed": seed, "fullest": found}


def pools(size: Size, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return time per token of a pool of Qwen3-235B under policies, without replicas, with vLLM's choice and with METRO's."""
    model = MODELS["qwen3-235b"]
    source = Synthetic(
        WORKLOADS["task"],
        GEOMETRIES["qwen3-235b"],
        size.layers,
        calibration=400,
        requests=size.requests,
        sampled=True,
    )
    choices: dict[str, tuple[Replicas, float]] = {
        "none": (Replicas(ratio=1.0, placing="tokens"), 0.0),
        "vllm": (Replicas(ratio=1.25, placing="tokens", balance="tokens"), 0.0),
        "metro": (Replicas(ratio=1.25), LEAST),
        "metro, dear": (Replicas(ratio=1.25), MOST),
    }
    settings = [
        Setting(
            engines=8, rate=None, batch=32.0, step_time=after(model.law, model.layers * exchange), speeds=(1.0,), limits=Limits(),
            ranks=model.ranks, replicas=replicas, seconds=size.seconds, output_tokens=size.tokens, sampled=True,
        )
        for replicas, exchange in choices.values()
    ]  # fmt: skip
    # the same rate for all of them: what gives the batch without replicas
    rate = settings[0].operating_point(source.traffic(seeds[0]).requests, seeds[0]).rate
    settings = [replace(setting, rate=rate, batch=None) for setting in settings]
    contenders = [parse_contender(name) for name in (JSQ, BAND, PRIOR)]
    prepared = [prepare(source, seed, [8], contenders) for seed in seeds]
    found = []
    for choice, setting in zip(choices, settings, strict=True):
        for contender, one in itertools.product(contenders, prepared):
            measures = run_one(one, setting, contender, meet(one, setting))
            found.append(
                {
                    "choice": choice,
                    "policy": contender.text,
                    "seed": one.seed,
                    "rate": rate,
                    "batch": measures.batch,
                    "tpot_p50": measures.tpot_p50,
                    "tpot_mean": measures.tpot_mean,
                    "fullest": measures.fullest_per_token,
                }
            )
    _prove(found)
    return found


def _prove(found: Sequence[Mapping[str, Any]]) -> None:
    """End the program if two choices of a replica left as much on the fullest rank; policies are proven where they run."""
    for one, other in itertools.combinations(found, 2):
        alike = all(one[name] == other[name] for name in ("policy", "seed", "fullest"))
        what = f"{other['choice']} has as much as {one['choice']} on the fullest rank under {one['policy']}"
        require(not alike or one["choice"].split(",")[0] == other["choice"].split(",")[0], what)


def study(size: Size, seeds: Sequence[int]) -> dict[str, Any]:
    """Run everything."""
    found: dict[str, Any] = {"seeds": list(seeds), "cells": [], "greedy": [], "meeting": [], "layouts": []}
    known = traces.load()
    captured = Captured(known, known.kinds).traffic(0).requests
    for seed in seeds:
        for name, model in MODELS.items():
            click.echo(f"seed {seed}, {name}", err=True)
            source = Synthetic(
                WORKLOADS["task"], GEOMETRIES[name], size.layers, 1, size.requests, sampled=True
            )
            population = source.traffic(seed).requests
            found["cells"] += cells(name, population, size, seed)
            found["meeting"].append(
                meeting(name, population, model.ranks, size, seed, own_tokens=model.own_tokens)
            )
            found["layouts"] += layouts(name, population, model.ranks, size.draws, seed)
        for ranks in (4, 8):
            found["layouts"] += layouts("captured", captured, ranks, size.draws, seed)
            found["greedy"] += greedy_on(captured, ranks, size, seed)
        found["meeting"] += [meeting("captured", captured, ranks, size, seed) for ranks in (4, 8)]
    click.echo("pools", err=True)
    found["pools"] = pools(size, seeds)
    return found


def write(figures: Path, size: Size = FULL, seeds: Sequence[int] = range(4)) -> None:
    """Run everything and keep it."""
    figures.write_text(as_lines(study(size, seeds)))


def as_lines(found: Mapping[str, Sequence[Any]]) -> str:
    """Return JSON with one record a line: changes can be read."""
    lists = []
    for name, some in found.items():
        records = ",\n".join(json.dumps(record) for record in some)
        lists.append(f"{json.dumps(name)}: [\n{records}\n]")
    return "{" + ",\n".join(lists) + "}\n"


if __name__ == "__main__":
    write(FIGURES)
