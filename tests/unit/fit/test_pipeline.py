import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from eldr.core.balancers import JSQ
from eldr.core.halves import Interval
from eldr.core.placement_sim import (
    PlacementResult,
    log_survival,
    replay,
)
from eldr.fit import report as reports
from eldr.fit.evaluation import Band, Evaluation, measure_band
from eldr.fit.pipeline import FitSettings, fit, split
from eldr.fit.samples import FitError, make_samples
from eldr.fit.verdict import judge

SETTINGS = FitSettings(k=4, model="m")


@pytest.fixture(scope="module")
def samples(records):
    return make_samples(records, Counter({"other model": 2}))


@pytest.fixture(scope="module")
def result(samples):
    return fit(samples, SETTINGS, now=5.0)


@pytest.fixture(scope="module")
def clear(mixed):
    """Return a fit of traffic of as many kinds as there are engines."""
    return fit(make_samples(mixed(500, 0), Counter({"other model": 2})), SETTINGS, now=5.0)


@pytest.mark.slow
def test_the_fit_finds_what_the_captured_activations_hold(result, captured, records):
    assert result.centroids.rho == pytest.approx(0.84, abs=0.03)
    assert result.centroids.weighting == "counts"
    assert max(result.sizes) - min(result.sizes) <= 1
    assert result.evaluation.held_out == 96


@pytest.mark.slow
def test_traffic_of_kinds_is_worth_a_set(clear):
    assert 0.03 < clear.evaluation.reduction.value < 0.12
    assert clear.evaluation.reduction.low > 0
    assert clear.evaluation.held_out == 125
    assert judge(clear).verdict == "Accepted"


def test_expected_unions_are_those_of_a_brute_force():
    rng = np.random.default_rng(0)
    inclusion = rng.random((5, 2, 3)).astype(np.float32) * 0.9
    arrivals = rng.integers(0, 5, 60)
    got = replay(JSQ(), arrivals, log_survival(inclusion), None, n_engines=2, batch=3, rng=rng)
    assert got.batch == pytest.approx(3)
    active = []
    for turn in range(12, 60, 3):
        live = arrivals[turn - 5 : turn + 1]
        for engine in (0, 1):
            members = [r for t, r in zip(range(turn - 5, turn + 1), live, strict=True) if t % 2 == engine]
            active.append((1 - np.prod(1 - inclusion[members], axis=0)).sum(axis=1).mean())
    # JSQ alternates between two equal engines (the tie turns), so membership by parity is the real placement.
    assert got.active_experts == pytest.approx(np.mean(active), rel=1e-4)


@pytest.mark.slow
def test_a_refit_keeps_worker_identities(samples, result):
    again = fit(samples, replace(SETTINGS, seed=9), now=6.0, active=result.centroids)
    assert again.centroids.kept == result.centroids.kept
    similarity = again.centroids.centers @ result.centroids.centers.T
    assert (similarity.argmax(axis=1) == np.arange(4)).all()
    assert sum(again.sizes) == again.fitted


def test_held_out_records_are_recent_and_not_fitted():
    train, held = split(30)
    assert not set(train) & set(held)
    assert set(train) | set(held) == set(range(30))
    assert min(held) >= 15
    assert len(split(1)[1]) == 0


def test_too_few_samples_are_refused_with_what_to_do(samples):
    with pytest.raises(FitError, match="cannot fill 9 clusters; wait for more") as caught:
        fit(samples.take(np.arange(8)), replace(SETTINGS, k=9), now=0.0)
    assert caught.value.reason == "NotEnoughSamples"


def test_without_decode_activations_all_layers_count(samples):
    blind = replace(samples, decode_tokens=np.zeros_like(samples.decode_tokens))
    got = fit(blind, SETTINGS, now=0.0)
    assert got.centroids.kept == (0, 1, 2, 3)
    assert got.centroids.rho is None
    assert got.evaluation is None
    assert judge(got).reason == "NotEvaluated"
    few = fit(blind.take(np.arange(40)), SETTINGS, now=0.0)
    assert judge(few)[:2] == ("Rejected", "TooFewSamples")


def test_a_set_that_cannot_be_held_against_the_active_one_is_rejected(samples, result):
    """Traffic without decode-time activations, one client's flood say, must not replace a set that was judged."""
    blind = replace(samples, decode_tokens=np.zeros_like(samples.decode_tokens))
    for k in (4, 3):
        again = fit(blind, replace(SETTINGS, k=k), now=0.0, active=result.centroids)
        got = judge(again)
        assert got[:2] == ("Rejected", "NotEvaluated")
        assert "16 held-out records" in got.message
        assert "decode" in got.message
    few = fit(blind.take(np.arange(40)), SETTINGS, now=0.0, active=result.centroids)
    assert judge(few)[:2] == ("Rejected", "TooFewSamples")
    assert judge(fit(blind, SETTINGS, now=0.0))[:2] == ("Accepted", "NotEvaluated"), (
        "a first set replaces none"
    )


def test_one_worker_leaves_nothing_to_judge(samples, result):
    one = fit(samples, replace(SETTINGS, k=1), now=0.0, active=result.centroids)
    assert judge(one)[:2] == ("Accepted", "NotEvaluated")


@pytest.mark.slow
def test_decode_counts_of_zero_are_no_evidence(samples):
    got = fit(replace(samples, decode=np.zeros_like(samples.decode)), SETTINGS, now=0.0)
    assert got.basis == "uninformative"
    assert got.centroids.kept == (0, 1, 2, 3)
    assert got.evaluation.reduction == (0.0, 0.0, 0.0)
    assert got.evaluation.saving == (0.0, 0.0, 0.0)
    assert judge(got).reason == "NoGain"


@pytest.mark.slow
@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize(("share", "weighting"), [(1.0, "counts"), (0.05, "counts_idf")])
def test_without_a_correlation_rare_cells_weigh_more_where_prompts_touch_few(
    samples, share, weighting, decoded
):
    rng = np.random.default_rng(0)
    other = replace(
        samples,
        prefill=rng.binomial(samples.prefill, share).astype(np.uint16),
        decode=rng.permutation(samples.decode),
        decode_tokens=samples.decode_tokens if decoded else np.zeros_like(samples.decode_tokens),
    )
    got = fit(other, SETTINGS, now=0.0)
    report = reports.as_json(got, judge(got), 1.0)
    assert got.centroids.weighting == weighting
    assert report["layers_basis"] == got.basis == ("uninformative" if decoded else "no_decode")
    assert report["layers_kept"] == [*got.centroids.kept] == [0, 1, 2, 3]
    if decoded:
        assert got.centroids.rho == got.choices[weighting].curve[-1] < 0.1


def test_the_suggested_band_leaves_half_of_the_decisions_to_load():
    rng = np.random.default_rng(0)
    similarity = rng.random((1001, 5)).astype(np.float32)
    best = np.sort(similarity, axis=1)
    band = measure_band(similarity, 0.2, 1)
    assert band.single == pytest.approx((best[:, -1] - best[:, -2] > 0.2).mean())
    assert measure_band(similarity, band.suggested, 1).single == pytest.approx(0.5, abs=2e-3)
    assert measure_band(similarity, 0.2, 2).single == 0.0


@pytest.mark.slow
def test_zero_signatures_are_left_out(samples):
    prefill = samples.prefill.copy()
    prefill[::2] = 0
    got = fit(replace(samples, prefill=prefill), SETTINGS, now=0.0)
    assert got.fitted < got.samples / 1.5


@pytest.mark.slow
def test_all_requests_alike_still_fit(make_record):
    same = make_samples([make_record(n, 3) for n in range(200)], Counter())
    got = fit(same, SETTINGS, now=0.0)
    assert max(got.sizes) == -(-got.fitted // 4)
    assert judge(got).verdict in {"Accepted", "Rejected"}


def test_one_worker_and_one_sample(make_record):
    got = fit(make_samples([make_record(0, 3)], Counter()), replace(SETTINGS, k=1), now=0.0)
    assert got.sizes == [1]
    assert got.evaluation is got.baseline is None


def around(value, half_width):
    return None if value is None else Interval(value, value - half_width, value + half_width)


def evaluation(new, active, width):
    """Return an evaluation whose gain is known to ``width``, and the rest to one point."""
    looks = PlacementResult(np.full((1, 2), 8), np.full((1, 2), 50.0))
    gain = None if active is None else around(new - active, width)
    return Evaluation(
        looks,
        looks,
        around(new, 0.01),
        around(active, 0.01),
        gain,
        around(0.1, 0.01),
        40,
        Band(0.1, 0.5, 0.1),
    )


@pytest.mark.parametrize(
    ("new", "active", "width", "verdict", "reason"),
    [
        (0.10, None, 0, "Accepted", "Better"),
        (0.012, None, 0, "Accepted", "Better"),
        (0.008, None, 0, "Rejected", "NoGain"),
        (-0.008, None, 0, "Rejected", "NoGain"),
        (-0.03, -0.10, 0.01, "Regresses", "WorseThanJSQ"),
        (-0.076, None, 0.0, "Regresses", "WorseThanJSQ"),
        (0.10, 0.05, 0.04, "Accepted", "Better"),
        (0.10, 0.05, 0.046, "Rejected", "NotBetter"),
        (0.10, 0.096, 0.0, "Rejected", "NotBetter"),
        (0.05, 0.10, 0.01, "Rejected", "NotBetter"),
    ],
)
def test_only_a_set_that_is_better_beyond_doubt_is_accepted(result, new, active, width, verdict, reason):
    got = judge(replace(result, evaluation=evaluation(new, active, width)))
    assert (got.verdict, got.reason) == (verdict, reason)


@pytest.mark.parametrize(("active", "harms"), [(None, None), (0.02, False), (-0.014, False), (-0.016, True)])
def test_a_set_harms_that_costs_experts_beyond_doubt(result, active, harms):
    found = evaluation(0.1, active, 0.01)
    assert found.active_harms is harms
    got = judge(replace(result, evaluation=found))
    assert ("the active set regresses," in got.message) is bool(harms)
    report = reports.as_json(replace(result, evaluation=found), got, 1.0, active="sha256:a")
    assert report["active_harms"] is harms
    assert report["active_digest"] == (None if active is None else "sha256:a")
    expected = None if active is None else pytest.approx([active - 0.01, active + 0.01])
    assert report["active_reduction_interval"] == expected


@pytest.mark.slow
def test_reports(clear, tmp_path, capsys):
    report = reports.as_json(clear, judge(clear), 1.25)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["imbalance"] == pytest.approx(1.0, abs=0.05)
    assert report["placement_imbalance"] == clear.evaluation.new.imbalance > 1.05
    assert report["tau"] == 0.1
    assert 0.1 < report["suggested_tau"] < 1.0
    assert 0.5 < report["single_candidate"] <= 1.0
    assert report["layers_basis"] == "correlation"
    low, high = report["reduction_interval"]
    assert low < report["reduction"] < high
    assert (report["gain"], report["active_harms"]) == (None, None)
    blind = report | {"active_experts": None, "rho": None, "rho_curves": {}, "layers_basis": "no_decode"}
    reports.print_text(blind, Console(width=160))
    reports.draw(blind, tmp_path / "b.png")
    assert "unknown" in capsys.readouterr().out
