"""Which model the engines serve is told by signatures; those of two models may come in turns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from eldr.wire import ExpertCounts
from eldr_router.placement.locality import Locality
from eldr_router.placement.signature import Signature

LONG = 5000


def signature(layers: int) -> Signature:
    counts = np.full((layers, 8), 2, np.uint16)
    return Signature(ExpertCounts(counts, top_k=4, tokens=4, exact=True))


OLD, NEW = signature(2), signature(3)


def noticed(locality: Locality, *signatures: Signature) -> int:
    """Return how often unions began anew."""
    begun = 0
    for one in signatures:
        before = locality.unions
        locality.notice(one)
        begun += before is not None and locality.unions is not before
    return begun


def made() -> Locality:
    locality = Locality()
    locality.follow(None, wanted=True)
    locality.notice(OLD)
    return locality


@pytest.mark.parametrize("turn", [1, 10, 19, 25, 79])
def test_two_models_in_turns_restart_the_unions_once_at_most(turn):
    turns = itertools.islice(itertools.cycle([*[OLD] * turn, *[NEW] * turn]), LONG)
    assert noticed(made(), *turns) <= 1


def test_a_rollout_restarts_them_once_or_twice():
    rng = np.random.default_rng(0)
    mixed = [NEW if rng.random() < at / LONG else OLD for at in range(LONG)]
    locality = made()
    assert 1 <= noticed(locality, *mixed, *[NEW] * 100) <= 2
    assert locality.unions.shape.n_layers == 3


def test_another_model_is_noticed_soon_however_long_the_first_one_served():
    for served in (1, 25, LONG):
        locality = made()
        noticed(locality, *[OLD] * served)
        assert noticed(locality, *[NEW] * 21) == 1


def test_a_model_that_returns_is_noticed_later_and_after_a_while_as_soon_as_before():
    locality = made()
    assert noticed(locality, *[NEW] * 25, *[OLD] * 25) == 1
    assert noticed(locality, *[OLD] * 100) == 1
    assert noticed(locality, *[OLD] * LONG, *[NEW] * 21) == 1
