import math

import pytest

from eldr_lab.evidence.capacity import measured_gain
from eldr_lab.evidence.intervals import Interval, interval
from eldr_lab.evidence.markdown import listed, table
from eldr_lab.evidence.verdicts import Holds, Verdict, at_most, judge, within


@pytest.mark.parametrize(
    ("ours", "low", "high", "verdict"),
    [
        (Interval(-12.0, 0.5), -13.0, -13.0, Verdict.REPRODUCED),
        (Interval(-9.0, 0.2), -12.0, -12.0, Verdict.REPRODUCED),  # the end of a quarter less
        (Interval(-8.7, 0.2), -12.0, -12.0, Verdict.UNDERSTATED),
        (Interval(-8.7, 0.4), -12.0, -12.0, Verdict.REPRODUCED),  # a wider interval reaches it
        (Interval(-3.0, 9.0), -12.0, -12.0, Verdict.NOT),  # but not any width
        (Interval(-25.0, 9.0), -12.0, -12.0, Verdict.OVERSTATED),
        (Interval(-16.0, 0.5), -12.0, -12.0, Verdict.OVERSTATED),
        (Interval(-18.0, 0.5), -21.0, -17.0, Verdict.REPRODUCED),
        (Interval(-30.0, 0.5), -21.0, -17.0, Verdict.OVERSTATED),
        (Interval(-5.0, 0.5), -21.0, -17.0, Verdict.UNDERSTATED),
        (Interval(1.0, 2.0), -12.0, -12.0, Verdict.NOT),  # not told apart from nothing
        (Interval(-0.9, 1.0), -1.1, -1.1, Verdict.NOT),  # the published number is an effect, ours may be none
        (Interval(-0.9, 1.0), -5.0, -1.2, Verdict.NOT),
        (Interval(-0.4, 1.0), -0.8, -0.8, Verdict.REPRODUCED),  # both are nothing, within the tolerance
        (Interval(0.1, 0.5), 0.2, 0.2, Verdict.REPRODUCED),
        (Interval(3.0, 0.5), -12.0, -12.0, Verdict.NOT),
        (Interval(-5.0, 0.5), 1.5, 1.5, Verdict.NOT),
        (Interval(40.0, 2.0), 17.4, 17.4, Verdict.OVERSTATED),
        (Interval(-12.0, math.nan), -12.5, -12.5, Verdict.REPRODUCED),  # one seed: the mean alone
    ],
)
def test_judge(ours, low, high, verdict):
    assert judge(ours, low, high) is verdict


def test_small_units_have_their_own_tolerance():
    assert judge(Interval(0.35, 0.01), 0.47, 0.47) is Verdict.REPRODUCED
    assert judge(Interval(0.35, 0.002), 0.47, 0.47, least=0.05) is Verdict.UNDERSTATED


def test_claims_are_judged_by_the_whole_interval():
    assert at_most(Interval(-1.0, 0.5), 0.0) is Holds.YES
    assert at_most(Interval(-1.0, 1.5), 0.0) is Holds.OPEN
    assert at_most(Interval(1.0, 0.5), 0.0) is Holds.NO
    assert within(Interval(-10.0, 1.0), -17.0, -8.0) is Holds.YES
    assert within(Interval(-17.5, 1.0), -17.0, -8.0) is Holds.OPEN
    assert within(Interval(-8.5, 1.0), -17.0, -8.0) is Holds.OPEN, "only the mean lies inside"
    assert within(Interval(-20.0, 1.0), -17.0, -8.0) is Holds.NO


def test_interval_is_students():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == pytest.approx(2.0)
    assert found.half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert str(found) == "+2.0 ±2.5"
    assert str(interval([-0.04])) == "-0.0"
    assert math.isnan(interval([1.0]).half)


def test_published_throughput_by_the_same_rule():
    """By hand: JSQ has 42.3 / 44.5 ms at 60 requests/s, the band 39.0 at 60 and 44.9 at 80, 38.4 at 40 and 46.6 at 60."""
    middle, tail = (measured_gain("gpt-oss-120b", "language", "ELDR", quantile) for quantile in (0, 1))
    assert middle.more.mean == pytest.approx(100 * (20 * 3.3 / 5.9) / 60, abs=1.0)
    assert tail.more.mean == pytest.approx(100 * (40 + 20 * 6.1 / 8.2 - 60) / 60, abs=1.0)
    assert not middle.at_least
    task = measured_gain("gpt-oss-120b", "task", "ELDR", 0)
    assert task.at_least
    assert str(task) == "+66.7, at least"
    # faster at 100 requests/s than at 60: such times say nothing on throughput
    assert measured_gain("qwen3-30b", "task", "ELDR", 0) is None


def test_table_refuses_ragged_rows_and_escapes():
    assert table(("a", "b"), [("1|2", "3")]).splitlines()[-1] == "| 1\\|2 | 3 |"
    with pytest.raises(ValueError, match="expected 2 cells"):
        table(("a", "b"), [("1",)])
    assert listed(["a", "b", "c"]) == "a, b and c"
