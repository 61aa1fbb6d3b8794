"""The law of real steps, from steps whose law is known."""

import numpy as np
import pytest

from eldr_lab.steps import law as steps_law
from eldr_lab.steps.law import Row

KINDS = {"copies of 1": 0.1, "one kind": 0.8, "all kinds": 1.0}


def rows(fixed=2e-3, expert=0.5e-3, request=0.3e-3, noise=0.03, seed=0):
    rng = np.random.default_rng(seed)
    for plan in range(90):
        kind = list(KINDS)[plan % 3]
        batch = int(rng.choice([4, 8, 16, 32]))
        for _ in range(25):
            experts = rng.binomial(64, (1 - 0.94**batch) * KINDS[kind], 4)
            seconds = (fixed + expert * experts.mean() + request * batch) * rng.normal(1, noise)
            yield Row(plan * 7, kind, batch, float(seconds), float(experts.mean()), 0.04)


def test_the_law_is_found_with_its_interval():
    law = steps_law.fit(steps_law.read(list(rows())))
    for constant, (low, high), true in zip(law.constants, law.intervals, (2e-3, 0.5e-3, 0.3e-3), strict=True):
        assert low < true < high
        assert constant == pytest.approx(true, rel=0.1)
    assert law.r2 > 0.95 > law.r2_batch
    assert law.r2_medians > law.r2


def test_steps_in_which_the_machine_did_something_else_are_left_out():
    some = list(rows())
    some[::100] = [row._replace(seconds=row.seconds + 1.0) for row in some[::100]]
    law = steps_law.fit(steps_law.read(some))
    assert law.left_out >= len(some) // 100
    assert law.constants[1] == pytest.approx(0.5e-3, rel=0.1)


def test_a_router_learns_the_same():
    steps = steps_law.read(list(rows()))
    expert, error = steps_law.as_routers_learn_it(steps, 64)
    assert expert == pytest.approx(0.5e-3, abs=3 * error)
    assert error < 0.05e-3
    low, high = steps_law.fit(steps).intervals[1]
    assert low - 2 * error <= expert <= high + 2 * error


def test_a_machine_that_changes_its_speed_is_seen_through():
    some = list(rows())
    slow = [number % 50 >= 30 for number in range(len(some))]
    some = [
        row._replace(seconds=1.8 * row.seconds, reference=1.8 * row.reference) if late else row
        for row, late in zip(some, slow, strict=True)
    ]
    law = steps_law.fit(steps_law.read(some))
    assert law.r2 > 0.95
    assert law.constants[1] == pytest.approx(0.5e-3, rel=0.1)
