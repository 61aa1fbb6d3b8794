"""Comparing real engines with their reference: rounding is forgiven where it decides, and nothing else."""

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


def fails(model, part, layer, experts, *, by, distance):
    """Miscount some experts of a layer, and hold the distance by layer that is told."""
    seen = model.seen()
    getattr(seen, part)[layer, experts] += by
    with pytest.raises(AssertionError, match=rf"{part}: L1 by layer \[{distance}\]"):
        resolve(seen, model.ask)


def test_equal_counts_and_tokens_pass_at_once():
    model = Model(EARLY)
    assert resolve(model.seen(), model.ask) == []
    assert model.asked == 1


@pytest.mark.parametrize("swaps", [(LATE,), (EARLY,), (EARLY, LATE), (GROUP,)])
def test_near_ties_that_were_decided_otherwise_are_followed_and_told(swaps):
    model = Model(EARLY, LATE, GROUP)
    assert sorted(resolve(model.seen(*swaps), model.ask)) == sorted(map(str, swaps))


def test_one_count_moved_between_experts_whose_gap_is_clear_fails():
    fails(Model(EARLY, LATE), "prefill", 1, [0, 4], by=(-1, 1), distance="0, 2, 0")


@pytest.mark.parametrize("to", [4, 6])
def test_a_near_tie_excuses_its_own_two_experts_alone(to):
    fails(Model(EARLY), "prefill", 0, [1, to], by=(-1, 1), distance="2, 0, 0")


def test_a_near_tie_of_groups_excuses_no_half_of_it():
    fails(Model(GROUP), "prefill", 1, [0, 4], by=(-1, 1), distance="0, 2, 0")


def test_a_near_tie_without_what_follows_from_it_fails():
    fails(Model(EARLY), "prefill", 0, [1, 5], by=(-1, 1), distance="2, 0, 0")


def test_a_near_tie_of_the_prompt_excuses_no_count_of_the_answer():
    fails(Model(EARLY), "decode", 0, [1, 5], by=(-1, 1), distance="2, 0, 0")


def test_a_count_that_is_missing_fails_beside_a_near_tie():
    fails(Model(LATE), "decode", 2, 0, by=-1, distance="0, 0, 1")


def test_near_ties_of_one_layer_are_used_once_each():
    fails(Model(LATE), "decode", 2, [0, 6], by=(-2, 2), distance="0, 0, 4")


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
