"""Comparing real engines with their reference: rounding is forgiven where it decides, and nothing else."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from eldr_tiny_moe.client import Answer, NextToken, Tie
from tests.vllm.comparison import Seen, resolve

PROMPT, GENERATED, LAYERS, EXPERTS, TOP_K = 60, [7, 8, 9], 3, 8, 2
POSITIONS = PROMPT + len(GENERATED) - 1
EARLY = Tie(position=4, layer=0, chosen=(1,), rejected=(5,), gap=1e-5)
GROUP = Tie(position=5, layer=1, chosen=(0, 1), rejected=(4, 6), gap=1e-5)
LATE = Tie(position=61, layer=2, chosen=(0,), rejected=(6,), gap=2e-5)


class Model:
    """Experts by position and layer; a choice made otherwise at layer 0 changes the same token's later layers too."""

    def __init__(self, *ties: Tie, gap: float = 0.5) -> None:
        self.ties, self.asked, self.gap = ties, 0, gap

    def experts(self, swaps: Sequence[Tie] = ()) -> np.ndarray:
        chosen = np.zeros((POSITIONS, LAYERS, EXPERTS), dtype=int)
        chosen[:, :, :TOP_K] = 1
        for tie in swaps:
            chosen[tie.position, tie.layer, list(tie.chosen)] = 0
            chosen[tie.position, tie.layer, list(tie.rejected)] = 1
            if tie.layer == 0:
                chosen[tie.position, 1:] = np.roll(chosen[tie.position, 1:], 2, axis=-1)
        return chosen

    def ask(self, swaps: Sequence[Tie]) -> Answer:
        self.asked += 1
        chosen = self.experts(swaps)
        parts = (chosen[:PROMPT].sum(axis=0).tolist(), chosen[PROMPT:].sum(axis=0).tolist())
        following = [NextToken(token, token + 1, self.gap, 1e-3) for token in GENERATED]
        return Answer(*parts, np.full((POSITIONS, LAYERS), 0.5).tolist(), list(self.ties), following)

    def seen(self, *swaps: Tie, counted: bool = True, generated: Sequence[int] = tuple(GENERATED)) -> Seen:
        chosen = self.experts(swaps)
        prefill = chosen[:PROMPT].sum(axis=0) if counted else None
        return Seen(PROMPT, list(generated), prefill, chosen[PROMPT:].sum(axis=0))


MISCOUNTS = {
    "one count moved between experts whose gap is clear": ((EARLY, LATE), "prefill", 1, [0, 4], (-1, 1)),
    "one moved to another expert than a near tie's": ((EARLY,), "prefill", 0, [1, 4], (-1, 1)),
    "half of a near tie of groups": ((GROUP,), "prefill", 1, [0, 4], (-1, 1)),
    "a near tie without what follows from it": ((EARLY,), "prefill", 0, [1, 5], (-1, 1)),
    "a near tie of the prompt, in the answer": ((EARLY,), "decode", 0, [1, 5], (-1, 1)),
    "one count missing beside a near tie": ((LATE,), "decode", 2, 0, -1),
    "a near tie used twice": ((LATE,), "decode", 2, [0, 6], (-2, 2)),
}


@pytest.mark.parametrize(("ties", "part", "layer", "experts", "by"), MISCOUNTS.values(), ids=MISCOUNTS)
def test_a_miscount_fails_and_tells_its_distance_by_layer(ties, part, layer, experts, by):
    model = Model(*ties)
    seen, distance = model.seen(), [0] * LAYERS
    getattr(seen, part)[layer, experts] += by
    distance[layer] = int(np.abs(by).sum())
    with pytest.raises(AssertionError, match=re.escape(f"{part}: L1 by layer {distance}")):
        resolve(seen, model.ask)


def test_equal_counts_and_tokens_pass_at_once():
    model = Model(EARLY)
    assert resolve(model.seen(), model.ask) == []
    assert model.asked == 1


@pytest.mark.parametrize("swaps", [(LATE,), (EARLY,), (EARLY, LATE), (GROUP,)])
def test_near_ties_that_were_decided_otherwise_are_followed_and_told(swaps):
    model = Model(EARLY, LATE, GROUP)
    assert sorted(resolve(model.seen(*swaps), model.ask)) == sorted(map(str, swaps))


def test_more_near_ties_than_an_engine_may_have_prove_nothing():
    model = Model(*(LATE._replace(position=at, layer=1) for at in range(5)))
    with pytest.raises(AssertionError, match="5 near ties, expected at most 4"):
        resolve(model.seen(), model.ask)


@pytest.mark.parametrize(("gap", "said"), [(1e-4, 8), (0.5, 7)])
def test_a_token_may_be_the_second_best_of_a_near_tie(gap, said):
    model = Model(gap=gap)
    told = resolve(model.seen(generated=(said, 8, 9)), model.ask)
    assert len(told) == (said == 8)


@pytest.mark.parametrize(("gap", "said"), [(0.5, 8), (1e-4, 6)])
def test_any_other_token_fails(gap, said):
    model = Model(gap=gap)
    with pytest.raises(AssertionError, match=f"position 0: {said}, expected"):
        resolve(model.seen(generated=(said, 8, 9)), model.ask)
