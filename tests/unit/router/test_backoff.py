import random

from eldr_router.sources.backoff import Backoff


def test_waits_double_up_to_a_bound_and_begin_anew():
    backoff = Backoff(0.25, 10.0, lambda: 1.0)
    assert [backoff.failed() for _ in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    backoff.worked()
    assert backoff.failed() == 0.25


def test_waits_are_spread_over_their_upper_half():
    draw = random.Random(1).random
    waits = [Backoff(1.0, 10.0, draw).failed() for _ in range(1000)]
    assert 0.5 <= min(waits) < 0.51
    assert 0.99 < max(waits) <= 1.0


def test_a_year_of_failures_is_no_overflow():
    backoff = Backoff(0.25, 10.0, lambda: 1.0, failures=10**9)
    assert backoff.failed() == 10.0
