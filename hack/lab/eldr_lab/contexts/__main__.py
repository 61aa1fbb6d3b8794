"""What it is worth on real engines to count the context of requests: docs/benchmarks/contexts-engines.md.

    python -m eldr_lab.contexts [--rounds 6] [--again]

One prefill and two decode engines of vLLM serve the same requests under each policy, round by round, each policy first in turn. What
differs between policies of a name is whether their router is told how many tokens the decode engines' KV caches hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx
import numpy as np

from eldr.contract import POLICY_MARGINAL
from eldr.engine.install import copy
from eldr_bench.machine import ROOT, cpu_model, revision, vllm_environment
from eldr_bench.proof import Unproven, require
from eldr_bench.router import in_turn
from eldr_demo.answers import AnswerError
from eldr_lab.contexts import page, unaware
from eldr_lab.contexts.traffic import Request, Served, draw, numbered, play
from eldr_lab.studies.contexts import quantities, rounded
from eldr_tiny_moe import corpus
from tests.support.processes import wait_for
from tests.support.router import Router, router
from tests.vllm.engines import BLOCK, NAME, Engine, Setup
from tests.vllm.fleet import serving

PAGE = ROOT / "docs" / "benchmarks" / "contexts-engines.md"
FIGURES = PAGE.with_suffix(".json")
SEED = 500
"""No constant was chosen under this seed, or a later one."""
WARM, MEASURED = 10.0, 40.0
"""Seconds."""
_KV_SECONDS = 30.0
_BY_RULE = 0.95
"""Of the placements: a prefill engine may answer now and then without a signature."""


class Policy(NamedTuple):
    """One way to place: a router's policy, and whether it knows KV caches."""

    name: str
    knows: bool


POLICIES = {
    page.PLAIN: Policy("JSQ", knows=False),
    "JSQ": Policy("JSQ", knows=True),
    page.DEFAULT: Policy(POLICY_MARGINAL, knows=False),
    "default": Policy(POLICY_MARGINAL, knows=True),
}


class Load(NamedTuple):
    """Requests per second, the share of long ones, and the blocks of each decode engine's KV cache."""

    rate: float
    share: float
    blocks: int


@contextlib.contextmanager
def engines(blocks: int, folder: Path) -> Iterator[list[Engine]]:
    """Run one prefill and two decode engines."""
    program, plugin = vllm_environment(), folder / "plugin"
    copy(plugin)
    setups = {
        "p0": Setup(role="prefill", lease=300, blocks=2048, mode=None, plugin=plugin),
        "d0": Setup(role="decode", lease=300, blocks=blocks, mode=None, plugin=plugin),
    }
    setups["d1"] = setups["d0"]
    made = [Engine(name, setup, program, folder) for name, setup in setups.items()]
    with serving(*made):
        yield made


def run(
    policy: Policy, requests: Sequence[Request], made: Sequence[Engine], folder: Path
) -> tuple[list[Served], float]:
    """Serve requests under a policy; return what became of them, and how often engines preempted one.

    Raises
    ------
    Unproven
        If the router did something else than its policy says.
    """
    under = () if policy.knows else (sys.executable, unaware.__file__)
    urls = {engine.name: engine.url for engine in made}
    decode = made[1:]

    def preempted() -> float:
        return sum(engine.metric("vllm:num_preemptions_total") for engine in decode)

    before = preempted()
    with router(folder, urls, model=NAME, policy=policy.name, lease_seconds=300, under=under) as started:
        tokens = decode[0].setup.blocks * BLOCK

        def known() -> list[Any]:
            return [engine["kv_tokens"] for engine in started.state()["decode"]]

        if policy.knows:
            wait_for(lambda: known() == [tokens, tokens], "the router to know KV caches", _KV_SECONDS, known)
        try:
            served = asyncio.run(play(started.url, NAME, requests))
        except AnswerError as error:
            raise Unproven(f"{policy}: {error}") from None
        _prove(policy, started, served, known())
    return served, preempted() - before


def _prove(policy: Policy, started: Router, served: Sequence[Served], known: Sequence[Any]) -> None:
    state, n = started.state(), len(served)
    require(state["policy"] == policy.name, f"policy {state['policy']} is in effect, not {policy.name}")
    require(policy.knows == (None not in known), f"{policy}: the router knows KV caches of {known} tokens")
    placed = started.counter("placements", policy=policy.name)
    reason = "union" if policy.name == POLICY_MARGINAL else "policy"
    by_rule = started.counter("placements", policy=policy.name, reason=reason)
    enough = placed == n and by_rule >= _BY_RULE * n
    require(enough, f"{policy}: placed {placed:g} of {n} requests, {by_rule:g} by {reason}")
    ended = started.counter("requests", outcome="ok")
    require(ended == n, f"{policy}: {ended:g} of {n} requests ended well")
    refused = started.counter("requests", outcome="overloaded")
    told = sum(one.refusals for one in served)
    require(refused == told, f"{policy}: refused {refused:g} requests, and clients got {told} refusals")
    require(
        policy.knows or not told, f"{policy}: refused {told} requests for a KV cache that it does not know"
    )


def measured(requests: Sequence[Request], served: Sequence[Served], preemptions: float) -> dict[str, float]:
    """Return the quantities of one run: seconds, and what 1000 requests meet."""
    counted = [(asked, got) for asked, got in zip(requests, served, strict=True) if asked.at >= WARM]
    is_long = np.array([asked.is_long for asked, _ in counted])
    first = np.array([got.first for _, got in counted])
    latency = np.array([got.last for _, got in counted])
    tpot = (latency - first) / np.array([asked.tokens - 1 for asked, _ in counted])
    refused = np.array([got.refusals > 0 for _, got in counted])
    of_all = {"preemptions": 1000 * preemptions / len(served), "refused": 1000 * float(refused.mean())}
    return rounded(of_all | quantities(tpot, first, latency, is_long))


def rounds(
    load: Load, seeds: Sequence[int], made: Sequence[Engine], folder: Path
) -> Iterator[dict[str, dict[str, float]]]:
    """Yield what each round measures under each policy."""
    texts = corpus.load()
    prompts = corpus.Prompts(texts, seed=seeds[0])

    def encode(text: str) -> list[int]:
        body = {"model": NAME, "prompt": text, "add_special_tokens": False}
        answer = httpx.post(f"{made[0].url}/tokenize", json=body, timeout=60).raise_for_status()
        return list(answer.json()["tokens"])

    names = list(POLICIES)
    for turn, seed in enumerate(seeds):
        requests = draw(
            prompts,
            sorted(texts),
            encode,
            rate=load.rate,
            share=load.share,
            seconds=WARM + MEASURED,
            seed=seed,
        )
        found = {}
        for name in in_turn(names, turn):
            which = names.index(name)
            own = [
                asked._replace(prompt=numbered(asked.prompt, turn, which, number))
                for number, asked in enumerate(requests)
            ]
            served, preemptions = run(POLICIES[name], own, made, folder / f"{turn}-{which}")
            found[name] = measured(own, served, preemptions)
            click.echo(f"round {turn}, {name}: {found[name]}", err=True)
        yield {name: found[name] for name in names}


@click.command(context_settings={"show_default": True})
@click.option("--rounds", "n", type=click.IntRange(2), default=6, help="How many, of four minutes each.")
@click.option("--rate", type=float, default=2.0, help="Requests per second.")
@click.option("--share", type=click.FloatRange(0.01, 0.5), default=0.08, help="Of long prompts.")
@click.option(
    "--blocks", type=click.IntRange(64), default=68, help="KV cache of a decode engine, 32 tokens each."
)
@click.option("--seed", default=SEED, help="Of the first round.")
@click.option("--again", is_flag=True, help="Write the page from the last figures.")
@click.option("--dry", is_flag=True, help="Write nothing.")
def main(n: int, rate: float, share: float, blocks: int, seed: int, *, again: bool, dry: bool) -> None:
    """Serve, measure, and write the page."""
    if not again:
        load, seeds = Load(rate, share, blocks), range(seed, seed + n)
        about = {
            "commit": revision(), "date": datetime.now(UTC).date().isoformat(), "machine": cpu_model(),
            "seeds": list(seeds), "seconds": MEASURED, **load._asdict(),
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as name, engines(blocks, Path(name)) as made:
            found = list(rounds(load, seeds, made, Path(name)))
        if dry:
            return
        FIGURES.write_text(json.dumps({**about, "rounds": found}, indent=1) + "\n")
    PAGE.write_text(page.page(json.loads(FIGURES.read_text())))


if __name__ == "__main__":
    main()
