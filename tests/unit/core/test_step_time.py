import pytest

from eldr.core.step_time import QWEN3_30B_MI300X


def test_step_time_reproduces_its_calibration_points():
    assert QWEN3_30B_MI300X.seconds(24, 74) == pytest.approx(20.4e-3, rel=0.02)
    assert QWEN3_30B_MI300X.seconds(64, 108) == pytest.approx(26.5e-3, rel=0.02)


def test_the_same_share_of_experts_costs_the_same_in_a_smaller_model():
    half = QWEN3_30B_MI300X.for_experts(64)
    assert half.seconds(8, 32) == pytest.approx(QWEN3_30B_MI300X.seconds(8, 64))
    assert half.for_experts(128) == QWEN3_30B_MI300X
