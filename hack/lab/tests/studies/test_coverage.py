"""The study of coverage counts what it says."""

import numpy as np
import pytest

from eldr.sim import traces
from eldr_demo.compare import STATISTICS, Change
from eldr_demo.simulated import MIXES
from eldr_lab.studies.coverage import covered, trace
from eldr_lab.synthetic.captured import Captured


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    return [
        (dict.fromkeys(range(200), 1.0), dict(enumerate(0.9 + 0.1 * rng.standard_normal() + np.zeros(200))))
        for _ in range(400)
    ]


@pytest.mark.parametrize(("reach", "share"), [(0.196, 0.95), (0.1, 0.68), (0.0, 0.0)])
def test_known_ranges_hold_as_often_as_they_should(pairs, reach, share):
    def method(base, other):
        change = other[0] - 1.0
        return {name: Change(change, change - reach, change + reach) for name in STATISTICS}

    for one in covered(pairs, method).values():
        assert one.share == pytest.approx(share, abs=0.05)
        assert one.width == pytest.approx(2 * reach)
        assert one.spread == pytest.approx(0.2, rel=0.1)


def test_a_trace_has_the_requests_of_a_demo_under_both_policies():
    population = Captured(traces.load(), MIXES["first"]).traffic(0).requests
    base, other = trace(population, 0)
    assert 300 < len(base.keys() & other.keys()) < 440
    assert np.mean(list(other.values())) < np.mean(list(base.values()))
    assert trace(population, 0) == (base, other)
    assert trace(population, 1)[0] != base
