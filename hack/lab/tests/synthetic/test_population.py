"""Where simulated requests come from."""

import numpy as np
import pytest

from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic
from eldr_lab.synthetic.captured import Captured


def test_every_layer_uses_top_k_experts(population):
    inclusion = -np.expm1(population.logs.reshape(200, 3, 32))
    assert inclusion.sum(axis=2) == pytest.approx(4.0, abs=1e-2)
    assert (inclusion >= 0).all()


def test_prompts_tell_of_decode_steps(population):
    inclusion = -np.expm1(population.logs)
    told = population.prefill.reshape(200, -1) / population.prompt_tokens[:, None]
    assert np.corrcoef(told.ravel(), inclusion.ravel())[0, 1] > 0.8


def test_one_domain_uses_fewer_experts_than_all(population):
    rng = np.random.default_rng(0)

    def active(some):
        draws = [rng.choice(some, 12, replace=False) for _ in range(50)]
        return np.mean([96 - np.exp(population.logs[chosen].sum(axis=0)).sum() for chosen in draws])

    of_one = np.mean([active(np.flatnonzero(population.label == label)) for label in range(4)])
    assert of_one < 0.9 * active(np.arange(200))


def test_drawn_steps_are_top_k_of_each_layer_as_often_as_expected(population, drawn):
    inclusion = -np.expm1(population.logs[:5])
    for request in range(5):
        often = np.bincount(drawn[request].ravel(), minlength=96) / 400
        # successive sampling takes the strongest a little less often than its approximation says
        assert often == pytest.approx(inclusion[request], abs=0.12)
        assert all(len(set(step.tolist())) == 12 for step in drawn[request])
        assert (np.sort(drawn[request], axis=1) // 32 == np.repeat(range(3), 4)).all()


def test_a_seed_is_a_workload():
    source = Synthetic(WORKLOADS["language"], Geometry(16, 2), n_layers=2, calibration=20, requests=30)
    one, same, other = source.traffic(3), source.traffic(3), source.traffic(4)
    assert np.array_equal(one.requests.prefill, same.requests.prefill)
    assert np.array_equal(one.calibration.decode, same.calibration.decode)
    assert not np.array_equal(one.requests.logs, other.requests.logs)


def test_captured_records_are_split_and_keep_their_steps(captured):
    kinds = ("fr", "legal")
    traffic = Captured(captured, kinds).traffic(0)
    fitting, evaluation = captured.split(kinds)
    assert len(traffic.calibration) == len(captured.split(kinds)[0])
    assert not {row.tobytes() for row in traffic.calibration.prefill.astype(np.uint16)} & {
        row.tobytes() for row in traffic.requests.prefill
    }
    assert not set(fitting) & set(evaluation)
    requests = traffic.requests
    assert requests.shares == (0.5, 0.5)
    step = requests.steps[7, 5].reshape(4, 4) - np.arange(4)[:, None] * 64
    assert np.array_equal(step, captured.decode_experts[evaluation[7], 5])
    share = -np.expm1(requests.logs[7])
    assert share.sum() == pytest.approx(16, abs=0.1)


def test_a_larger_batch_uses_more_experts(population):
    rng = np.random.default_rng(0)
    counts = [population.active(batch, rng) for batch in (1, 4, 16)]
    assert counts[0] == pytest.approx(4.0, abs=0.05)
    assert 4 < counts[1] < counts[2] < 32
