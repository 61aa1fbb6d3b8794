"""What engines answered and counted against an independent transformers reference: equal, but for choices that rounding decides.

An engine adds up in an order of its own, which depends on the CPU. Where a router's choice hangs on that, the engine may choose
otherwise, and whatever follows from it differs as well. So the reference names these choices, and everything must be equal to
the reference with some few of them made otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eldr_tiny_moe.client import Answer, ReferenceClient, Tie
from tests.support.processes import wait_for
from tests.vllm.pair import Exchange, Pair

MOST_TIES = 0.005
"""Share of a request's choices. If rounding decided more of them, the comparison would prove little."""
FEW = 3
MOST_ASKED = 40
Ask = Callable[[Sequence[Tie]], Answer]


class Compared(Protocol):
    """Engines, the reference of the same model, and where near ties are noted."""

    pair: Pair
    reference: ReferenceClient
    near_ties: list[str]


@dataclass(frozen=True)
class Seen:
    """What engines said of one request.

    Attributes
    ----------
    prompt : int
        Its tokens.
    generated : list of int
        Those to be compared.
    prefill, decode : ndarray or None
        Counts; None where nobody counted.
    """

    prompt: int
    generated: list[int]
    prefill: NDArray[np.int64] | None
    decode: NDArray[np.int64]


def check(compared: Compared, exchanges: Sequence[Exchange], *, greedy: bool = True, left: int = 0) -> None:
    """Compare counts of these requests with the reference.

    Parameters
    ----------
    greedy : bool
        Whether to compare tokens as well: nothing but the model chose them.
    left : int
        How many tokens of a longer prompt NIXL has the prefill engine leave to the decode engine, where they do not count.
    """
    done = {e.base for e in exchanges}
    wait_for(lambda: done <= compared.pair.activations().keys(), "activations of every request", 60)
    activations = compared.pair.activations()
    for exchange in exchanges:
        n, g = len(exchange.prompt), len(exchange.generated)
        counted = n - left if n > left else n
        signature, answer = exchange.signature, activations[exchange.base]
        for found, tokens in ((signature, counted), (answer, g - 1)):
            assert found is None or (found.exact, found.tokens) == (True, tokens), exchange.base
        prefill = None if signature is None else signature.counts.astype(int)
        decode = answer.counts.astype(int)
        positions = range(n - 1, n + g - 1) if greedy else ()
        seen = Seen(n, exchange.generated if greedy else [], prefill, decode)

        def ask(
            swaps: Sequence[Tie],
            exchange: Exchange = exchange,
            at: Sequence[int] = positions,
            end: int = counted,
        ) -> Answer:
            answer = compared.reference.ask(exchange.prompt, exchange.generated, at, swaps, exchange.images)
            if end == len(exchange.prompt):
                return answer
            return replace(answer, prefill=compared.reference.ask(exchange.prompt[:end], swaps=swaps).prefill)

        compared.near_ties += [f"{exchange.base}: {note}" for note in resolve(seen, ask, exchange.base)]


def resolve(seen: Seen, ask: Ask, what: str = "") -> list[str]:
    """Return which near ties an engine decided otherwise.

    Raises
    ------
    AssertionError
        If no few of them explain all that it said, or if there are too many of them.
    """
    first = ask(())
    most = FEW + MOST_TIES * np.size(first.router_gaps)
    assert len(first.ties) <= most, f"{what}: {len(first.ties)} near ties, expected at most {most:.0f}"
    waiting: list[tuple[Tie, ...]] = [()]
    for _ in range(MOST_ASKED):
        if not waiting:
            break
        taken = waiting.pop()
        answer = ask(taken) if taken else first
        if not _differences(seen, answer):
            return [*map(str, taken), *_near_tokens(seen, answer)]
        if len(taken) < FEW:
            waiting += [(*taken, tie) for tie in _candidates(seen, answer, taken)]
    raise AssertionError(f"{what}: {_differences(seen, first)}, near ties {first.ties}")


def clear(reference: ReferenceClient, prompt: Sequence[int], generated: Sequence[int]) -> None:
    """Assert that no rounding changes what is generated, so that engines on any CPU must give these very tokens.

    Raises
    ------
    AssertionError
        If it may; take another prompt.
    """
    positions = range(len(prompt) - 1, len(prompt) + len(generated) - 1)
    first = reference.ask(prompt, generated, positions)
    for swaps in ((), *((tie,) for tie in first.ties)):
        answer = reference.ask(prompt, generated, positions, swaps) if swaps else first
        for said, ranked in zip(generated, answer.next, strict=True):
            assert said == ranked.best, (prompt, swaps, ranked)
            assert ranked.gap > ranked.tolerance, (prompt, swaps, ranked)


def _candidates(seen: Seen, answer: Answer, taken: tuple[Tie, ...]) -> list[Tie]:
    """Return ties that may explain what differs, the likeliest last.

    A tie explains counts of its own layer, by its own experts. Where nobody counted its token, it may have changed whatever
    comes after it.
    """
    differing = [layer for _, layer, *_ in _moves(seen, answer)]
    layer = min(differing, default=len(answer.prefill))
    moves = set(_moves(seen, answer))
    known = {(tie.position, tie.layer) for tie in taken}
    helpful, hidden = [], []
    for tie in sorted(answer.ties, key=lambda tie: -tie.gap):
        if (tie.position, tie.layer) in known:
            continue
        part = "prefill" if tie.position < seen.prompt else "decode"
        if part == "prefill" and seen.prefill is None:
            hidden += [tie] if tie.layer < layer else []
        elif tie.layer == layer and moves.issuperset(
            [(part, layer, expert, -1) for expert in tie.chosen]
            + [(part, layer, expert, 1) for expert in tie.rejected]
        ):
            helpful.append(tie)
    return hidden + helpful


def _counted(seen: Seen, answer: Answer) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield what engines counted beyond the reference, by layer and expert."""
    for part, found, expected in (
        ("prefill", seen.prefill, answer.prefill),
        ("decode", seen.decode, answer.decode),
    ):
        if found is not None:
            yield part, found - np.array(expected)


def _moves(seen: Seen, answer: Answer) -> list[tuple[str, int, int, int]]:
    """Return part, layer, expert and direction of every count that differs."""
    return [
        (part, int(layer), int(expert), int(np.sign(difference[layer, expert])))
        for part, difference in _counted(seen, answer)
        for layer, expert in np.argwhere(difference)
    ]


def _differences(seen: Seen, answer: Answer) -> list[str]:
    """Return what differs beyond near ties of tokens, which the reference has followed: it reads what was generated."""
    found = [
        f"position {at}: {said}, expected {ranked}"
        for at, (said, ranked) in enumerate(zip(seen.generated, answer.next, strict=True))
        if said != ranked.best and not (said == ranked.second and ranked.gap < ranked.tolerance)
    ]
    for part, difference in _counted(seen, answer):
        if difference.any():
            found.append(f"{part}: L1 by layer {np.abs(difference).sum(axis=1).tolist()}")
    return found


def _near_tokens(seen: Seen, answer: Answer) -> list[str]:
    pairs = zip(seen.generated, answer.next, strict=True)
    return [f"{said}: {ranked}" for said, ranked in pairs if said != ranked.best]
