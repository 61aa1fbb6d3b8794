"""Continuous batching."""

import pytest

from eldr.core.step_time import StepTime
from eldr.simulate.active import ActiveExperts
from eldr.simulate.engine import Engine, Limits, Member

STEP_TIME = StepTime(fixed=1.0, per_expert=0.0, per_request=0.5, n_experts=32)


def engine(population, *, steady=True, **limits):
    batch = ActiveExperts(population.logs, 3)
    batch.steady = steady
    return Engine(STEP_TIME, Limits(**limits), batch)


def drive(engine, arrivals):
    """Run one engine on [(time, tokens)]; return join and end times, and all steps."""
    joined, ended, ran, due = {}, {}, [], None
    waiting = list(enumerate(arrivals))
    while waiting or due is not None:
        if waiting and (due is None or waiting[0][1][0] <= due):
            number, (now, tokens) = waiting.pop(0)
            changed = engine.add(Member(number, number, tokens), now)
            due = changed if changed is not None else due
            continue
        now = due
        over, new, steps = engine.advance(now)
        ended |= {member.number: now for member in over}
        joined |= {member.number: (now, engine.first_end) for member in new}
        ran += [steps] if steps else []
        due = engine.due
    return joined, ended, ran


@pytest.mark.parametrize("steady", [False, True])
def test_who_comes_in_a_step_joins_at_the_next(population, steady):
    joined, ended, ran = drive(engine(population, steady=steady), [(0.0, 5), (1.6, 2), (2.9, 1)])
    # steps of 1.5 s alone: the second ends at 3.0, where both join; then 2.5 s with three, and 2.0 s with two
    assert joined[1] == joined[2] == (3.0, 5.5)
    assert ended == {2: 5.5, 1: 7.5, 0: 9.0}
    assert sum(steps.steps * steps.batch for steps in ran) == 8


def test_who_comes_at_a_steps_very_start_waits_for_its_end(population):
    alone = engine(population)
    alone.add(Member(0, 0, 4), 0.0)
    alone.advance(0.0)
    assert alone.add(Member(1, 1, 4), 0.0) == 1.5


def test_batches_keep_to_their_limit_and_serve_in_order(population):
    limited = engine(population, max_num_seqs=2)
    joined, ended, ran = drive(limited, [(0.0, 3), (0.1, 3), (0.2, 3), (0.3, 3)])
    assert max(steps.batch for steps in ran) == 2
    assert [joined[number][0] for number in range(4)] == sorted(joined[number][0] for number in range(4))
    assert set(ended) == {0, 1, 2, 3}
    assert joined[2][0] == ended[0]


def test_room_is_told(population):
    limited = engine(population, max_num_seqs=2)
    assert limited.has_room
    limited.add(Member(0, 0, 4), 0.0)
    limited.advance(0.0)
    limited.add(Member(1, 1, 4), 0.1)
    assert not limited.has_room
