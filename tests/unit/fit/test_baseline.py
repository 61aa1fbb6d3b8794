"""What a fit leaves behind for live traffic to be compared with."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.contract import SIMILARITY_BINS
from eldr.core.similarity_bins import similarity_bin
from eldr.fit import report as reports
from eldr.fit.baseline import measure_baseline
from eldr.fit.pipeline import FitSettings, fit, split
from eldr.fit.samples import make_samples
from eldr.fit.verdict import judge


@given(best=st.floats(-1.5, 1.5))
def test_every_similarity_has_a_bin(best):
    found = similarity_bin(best)
    assert 0 <= found < SIMILARITY_BINS
    if 0 <= best < 1:
        assert found / SIMILARITY_BINS <= best + 1e-12
        assert best - 1e-12 <= (found + 1) / SIMILARITY_BINS


def test_records_are_counted_by_their_best_slot():
    scores = np.array([[0.5, 0.255], [0.1, 1.0], [-0.1, -0.3], [0, 0], [0.305, 0.3]], dtype=np.float32)
    found = measure_baseline(scores)
    assert found.requests == 4, "one has no preference"
    assert found.clusters == [3, 1]
    assert {at: n for at, n in enumerate(found.similarity) if n} == {0: 1, 30: 1, 50: 1, 99: 1}
    assert measure_baseline(np.zeros((3, 2), np.float32)) is None
    assert measure_baseline(np.zeros((0, 2), np.float32)) is None


@pytest.mark.slow
def test_a_report_holds_the_baseline_that_a_router_would_count(records):
    samples = make_samples(records, Counter())
    result = fit(samples, FitSettings(k=4, model="m"), now=0.0)
    baseline = reports.as_json(result, judge(result), 0.0)["baseline"]
    assert json.loads(json.dumps(baseline, allow_nan=False)) == baseline
    similarity, clusters = np.zeros(SIMILARITY_BINS, int), np.zeros(4, int)
    for row in split(len(samples))[1]:
        scores = result.centroids.similarities(samples.prefill[row]).tolist()
        similarity[similarity_bin(max(scores))] += 1
        clusters[scores.index(max(scores))] += 1
    # routers multiply one request at a time, fits many: the last bits differ
    assert np.abs(np.cumsum(similarity) - np.cumsum(baseline["similarity"])).max() <= 1
    assert clusters.tolist() == baseline["clusters"]
    assert baseline["requests"] == sum(baseline["similarity"]) == len(split(len(samples))[1])
    assert 0 < baseline["saving_low"] < baseline["saving"] < baseline["saving_high"] < 1


def test_without_decode_activations_there_is_a_baseline_without_a_saving(records):
    samples = make_samples(records, Counter())
    blind = replace(samples, decode_tokens=np.zeros_like(samples.decode_tokens))
    result = fit(blind, FitSettings(k=4, model="m"), now=0.0)
    baseline = reports.as_json(result, judge(result), 0.0)["baseline"]
    assert baseline["requests"] == len(split(len(samples))[1])
    assert (baseline["saving"], baseline["saving_low"], baseline["saving_high"]) == (None, None, None)
