"""What engines answered and counted against an independent transformers reference: L1 = 0, but for near ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from eldr.wire import ExpertCounts
from eldr_tiny_moe.client import ReferenceClient
from tests.support.processes import wait_for
from tests.vllm.pair import Exchange, Pair

NEAR_TIE = 1e-4


class Compared(Protocol):
    """Engines, the reference of the same model, and where near ties are noted."""

    pair: Pair
    reference: ReferenceClient
    near_ties: list[str]


def check(lab: Compared, exchanges: Sequence[Exchange]) -> None:
    """Compare tokens and counts of these requests with the reference."""
    done = {e.base for e in exchanges}
    wait_for(lambda: done <= lab.pair.activations().keys(), "activations of every request", 60)
    activations = lab.pair.activations()
    for exchange in exchanges:
        n, g = len(exchange.prompt), len(exchange.generated)
        expected = lab.reference.ask(exchange.prompt, exchange.generated, list(range(n - 1, n + g - 1)))
        # wrong tokens first: they say that the engine computed something else, whatever was counted
        for position, (said, ranked) in enumerate(zip(exchange.generated, expected.next, strict=True)):
            if said != ranked.best:
                where = f"{exchange.base} at {position}: {ranked}"
                assert said == ranked.second, where
                assert ranked.gap < NEAR_TIE, where
                lab.near_ties.append(where)
        if exchange.signature is not None:
            same(
                lab, f"{exchange.base} prompt", exchange.signature, expected.prefill, expected.router_gaps[:n]
            )
        same(
            lab,
            f"{exchange.base} answer",
            activations[exchange.base],
            expected.decode,
            expected.router_gaps[n:],
        )


def same(
    lab: Compared, what: str, found: ExpertCounts, expected: list[list[int]], gaps: list[list[float]]
) -> None:
    """Compare counts of tokens whose routers left these distances between the last chosen and the first rejected expert.

    ``gaps`` are by token and layer. A layer may count another expert for a token only where its own choice was a near tie.
    """
    assert found.exact, what
    assert found.tokens == len(gaps), what
    distance = np.abs(found.counts.astype(int) - np.array(expected or 0)).sum(axis=1)
    if distance.any():
        by_layer = np.array(gaps).reshape(-1, len(distance)).T
        ties = [sorted(layer[layer < NEAR_TIE].tolist()) for layer in by_layer]
        where = f"{what}: L1 by layer {distance.tolist()} of {len(gaps)} tokens, router near ties {ties}"
        assert (distance <= [2 * len(layer) for layer in ties]).all(), where
        lab.near_ties.append(where)
