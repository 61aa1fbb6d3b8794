"""The gate: what is accepted, of refits of the same traffic and after a change of mix, on captured activations."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from eldr.core.placement_sim import inclusion_probabilities, log_survival, random_unions
from eldr.fit.evaluation import MOST_RECORDS, evaluate
from eldr.fit.pipeline import FitSettings, fit
from eldr.fit.samples import make_samples
from eldr.fit.verdict import judge
from tests.unit.fit.conftest import MIX, OTHER_MIX

SETTINGS = FitSettings(k=4, model="m")
PREDICT = {"k": 4, "seed": 1, "tau": 0.1, "min_candidates": 1}


def samples_of(records):
    return make_samples(records, Counter())


@pytest.fixture(scope="module")
def before(mixed):
    """Return traffic of one mix, and its set."""
    samples = samples_of(mixed(400, 1))
    return samples, fit(samples, SETTINGS, now=0.0)


@pytest.mark.costly
def test_refits_of_new_records_of_the_same_traffic_are_seldom_better(mixed, before):
    _, first = before
    verdicts = Counter(
        judge(
            fit(samples_of(mixed(400, 10 + n)), replace(SETTINGS, seed=n), now=0.0, active=first.centroids)
        ).reason
        for n in range(12)
    )
    assert verdicts["Better"] <= 2, "a set of other records may be better in truth"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "mix", "gain"), [(280, OTHER_MIX, 0.1), (600, OTHER_MIX, 0.1), (600, OTHER_MIX[:2] + MIX[:2], 0)]
)
def test_a_change_of_mix_is_followed_and_the_old_set_is_told_to_harm(mixed, before, n, mix, gain):
    _, first = before
    after = fit(samples_of(mixed(n, 2, mix)), SETTINGS, now=0.0, active=first.centroids)
    assert judge(after)[:2] == ("Accepted", "Better")
    assert after.evaluation.gain.low > gain
    if not gain:  # half a change
        return
    assert after.evaluation.active_harms
    assert "the active set regresses," in judge(after).message


@pytest.mark.slow
def test_a_set_that_crowds_one_worker_harms_and_a_good_one_does_not(mixed, before):
    samples, first = before
    held = np.arange(200, 400)
    crowding = replace(first.centroids, centers=first.centroids.centers[[0, 0, 0, 0]].copy())
    crowding.centers[1:] *= -1  # nobody is near these
    found = evaluate(samples, held, first.centroids, crowding, **PREDICT)
    assert found.active_harms
    assert found.active_reduction.high < -0.005
    assert judge(replace(first, evaluation=found)).reason == "Better"
    assert not evaluate(samples, held, first.centroids, first.centroids, **PREDICT).active_harms


@pytest.mark.slow
def test_a_set_gains_nothing_on_itself(before):
    samples, first = before
    found = evaluate(samples, np.arange(200, 400), first.centroids, first.centroids, **PREDICT)
    assert found.gain == (0.0, 0.0, 0.0), "the same arrivals, the same placement"
    assert found.active_reduction == found.reduction


@pytest.mark.costly
def test_intervals_hold_what_other_records_of_the_traffic_say(mixed, before):
    """Of 20 samples of 100 records, all but a few intervals hold the saving on 2000 others."""
    _, first = before
    most = samples_of(mixed(2000, 99))
    truth = evaluate(most, np.arange(2000), first.centroids, None, **PREDICT)
    held = Counter()
    for seed in range(20):
        few = evaluate(
            samples_of(mixed(100, 100 + seed)),
            np.arange(100),
            first.centroids,
            None,
            **PREDICT | {"seed": seed},
        )
        held["reduction"] += few.reduction.low <= truth.reduction.value <= few.reduction.high
        held["saving"] += few.saving.low <= truth.saving.value <= few.saving.high
    assert held["reduction"] >= 16
    assert held["saving"] >= 15


@pytest.mark.slow
def test_a_log_of_any_length_is_judged_by_a_bounded_part(mixed, before):
    _, first = before
    many = samples_of(mixed(2 * MOST_RECORDS + 5, 5))
    found = evaluate(many, np.arange(len(many)), first.centroids, None, **PREDICT)
    assert found.held_out == MOST_RECORDS


@pytest.mark.slow
def test_random_batches_save_nothing_against_random_batches(before):
    samples, first = before
    found = evaluate(samples, np.arange(400), first.centroids, None, **PREDICT)
    inclusion = inclusion_probabilities(samples.decode, samples.decode_tokens)
    random = random_unions(log_survival(inclusion), 14)
    assert found.jsq.against(random) == pytest.approx(0.0, abs=0.005)
    assert found.new.active_experts < found.jsq.active_experts
    drawn = np.random.default_rng(0).integers(0, 400, (200, 14))
    unions = (1 - np.prod(1 - inclusion[drawn].astype(float), axis=1)).sum(axis=2).mean()
    assert random[14] == pytest.approx(unions, rel=0.01)
    assert random[0] == 0.0
    assert random[1] == pytest.approx(inclusion.sum(axis=2).mean(), rel=1e-5)
