import numpy as np
import pytest
from scipy.stats import spearmanr

from eldr_lab.correlation import forms


def test_rho_is_spearmans_over_pairs_of_requests(capture) -> None:
    found = capture()
    rho = forms.correlations(found, np.random.default_rng(0))
    assert len(rho) == 6

    def distances(x: np.ndarray) -> np.ndarray:
        unit = x.reshape(len(x), -1) / np.linalg.norm(x.reshape(len(x), -1), axis=1, keepdims=True)
        return (1 - unit @ unit.T)[np.triu_indices(len(x), 1)]

    target = distances(found.activations)
    idf = np.log((len(found.kind) + 1) / ((found.prefill > 0).sum(axis=0) + 1))
    for name, x in (
        ("counts", found.prefill),
        ("counts x idf", found.prefill * idf),
        ("square root of counts", np.sqrt(found.prefill)),
        ("gate probability", found.probability),
        ("gate logit", found.logit),
        ("binary", found.prefill > 0),
    ):
        assert rho[name].all == pytest.approx(spearmanr(distances(x * 1.0), target).statistic, abs=2e-3)
        assert rho[name].chosen >= rho[name].all
    assert rho["counts"].all > rho["gate logit"].all


def test_a_form_that_tells_nothing_places_like_nothing(capture, monkeypatch) -> None:
    monkeypatch.setattr(forms, "SECONDS", 4.0)
    found = forms.in_pools(capture(per_kind=40), seeds=(0, 1))
    assert set(found) == {"JSQ", *forms.forms(capture())}
    active = {name: np.mean([one.active_per_token for one in runs]) for name, runs in found.items()}
    assert active["counts"] < 0.97 * active["gate logit"]
    assert active["counts"] < 0.97 * active["JSQ"]
