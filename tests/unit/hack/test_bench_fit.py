"""The fit benchmark gives no figures for a fit that left out a part of its work."""

from dataclasses import replace

import pytest

from eldr.fit.pipeline import FitSettings
from eldr_bench import fit
from eldr_bench.proof import Unproven


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LAYERS": 6, "EXPERTS": 16, "TOP_K": 2, "DOMAINS": 4}.items():
            patch.setattr(fit, name, value)
        samples = fit.structured(200)
        yield samples, fit.fit(samples, FitSettings(k=4, model="m"), now=0.0)


def test_a_whole_fit_passes(fitted):
    fit.prove(*fitted, 4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: {"basis": "no_decode"}, "layers rest on no_decode"),
        (lambda r: {"choices": {"counts": r.choices["counts"]}}, "layers were chosen from"),
        (lambda r: {"centroids": replace(r.centroids, kept=(0, 1))}, r"layers \(0, 1\) were kept"),
        (lambda r: {"clustering": replace(r.clustering, labels=r.clustering.labels * 0)}, "are not level"),
        (lambda r: {"fitted": 3}, "are not level|records were fitted"),
        (lambda r: {"evaluation": None}, "None records were placed"),
    ],
)
def test_a_fit_that_left_something_out_is_told(fitted, change, why):
    samples, result = fitted
    with pytest.raises(Unproven, match=why):
        fit.prove(samples, replace(result, **change(result)), 4)
