"""Step-time models by name and by constants."""

import pytest

from eldr.simulate.step_times import GPT_OSS_120B_MI300X, STEP_TIMES, parse_step_time


def test_the_step_time_of_gpt_oss_reproduces_its_calibration_points():
    # published round-robin decode times at 20 and 100 requests a second
    assert GPT_OSS_120B_MI300X.seconds(15.3, 41) == pytest.approx(24.1e-3, rel=0.03)
    assert GPT_OSS_120B_MI300X.seconds(172, 111) == pytest.approx(53.9e-3, rel=0.03)


def test_step_times_by_name_and_by_constants():
    assert parse_step_time("qwen3-30b-mi300x", 128) == STEP_TIMES["qwen3-30b-mi300x"]
    half = parse_step_time("qwen3-30b-mi300x", 64)
    assert half.seconds(8, 32) == pytest.approx(STEP_TIMES["qwen3-30b-mi300x"].seconds(8, 64))
    own = parse_step_time("5,100,20", 32)
    assert own.seconds(10, 20) == pytest.approx(5e-3 + 2e-3 + 0.2e-3)
    assert own.scaled(2).seconds(10, 20) == pytest.approx(2 * own.seconds(10, 20))


@pytest.mark.parametrize("text", ["h100", "1,2", "-1,2,3", "nan,1,1", ""])
def test_bad_step_times(text):
    with pytest.raises(ValueError, match="expected"):
        parse_step_time(text, 32)
