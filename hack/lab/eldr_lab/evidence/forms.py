"""Signature mathematics on a workload: forms of signatures, rho, kept layers, unions of like requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.core.layers import LayerChoice, choose_layers
from eldr.core.pairs import Pairs, activation_distances, sample_pairs
from eldr.core.signature import (
    Counts,
    Floats,
    document_frequency,
    inverse_document_frequency,
)
from eldr.fit.samples import Samples
from eldr_lab.correlation.forms import to_clusters
from eldr_lab.evidence.cells import FORMS
from eldr_lab.synthetic.population import Population, Traffic

BATCHES = (8, 16, 32)
SKEWS = (50, 75)
"""Percent of a batch that is of one kind."""
SKEWED = 16
_DRAWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A way to make signatures of counts: the paper's transforms without gate scores, which counts do not tell."""

    name: str
    weights: Floats

    def counts(self, counts: Counts) -> Counts:
        """Return transformed counts, before weights and norm."""
        if self.name == "sqrt":
            return np.sqrt(counts.astype(np.float32))
        if self.name == "binary":
            return (counts > 0).astype(np.uint8)
        return counts


def make_form(name: str, samples: Samples) -> Form:
    """Return a form with the weights of its calibration requests."""
    df = document_frequency(samples.prefill)
    if name == "counts_idf":
        return Form(name, inverse_document_frequency(df, len(samples)))
    return Form(name, np.ones(df.shape, dtype=np.float32))


def choose(form: Form, samples: Samples, n_pairs: int, seed: int) -> LayerChoice:
    """Choose layers for a form on the calibration requests."""
    pairs: Pairs = sample_pairs(len(samples), n_pairs, np.random.default_rng([seed, 11]))
    target = activation_distances(samples.decode, pairs)
    return choose_layers(form.counts(samples.prefill), target, pairs, weights=form.weights)


def cosines(form: Form, traffic: Traffic, engines: int, n_pairs: int, seed: int) -> Floats:
    """Return every request's cosine to balanced centroids of a form, shape (n_requests, engines)."""
    mask: npt.NDArray[np.bool_] = choose(form, traffic.calibration, n_pairs, seed).mask
    fitted, served = form.counts(traffic.calibration.prefill), form.counts(traffic.requests.prefill)
    return to_clusters(fitted, served, form.weights, mask, engines, np.random.default_rng([seed, 12]))


def facts(traffic: Traffic, n_pairs: int, seed: int) -> dict[str, float]:
    """Return what one seed's workload says, by name."""
    found: dict[str, float] = {}
    for name in FORMS:
        choice = choose(make_form(name, traffic.calibration), traffic.calibration, n_pairs, seed)
        found[f"rho {name}"] = choice.rho
        found[f"mask gain {name}"] = choice.rho - choice.curve[-1]
        found[f"layers {name}"] = float(choice.mask.sum())
    for batch in BATCHES:
        found[f"union {batch}"] = same_kind(traffic.requests, batch, np.random.default_rng([seed, 13]))
    for percent in SKEWS:
        rng = np.random.default_rng([seed, 14])
        found[f"skew {percent}"] = same_kind(traffic.requests, SKEWED, rng, round(SKEWED * percent / 100))
    kinds, single = correlations(traffic.requests)
    return found | {"correlation of kinds": kinds, "correlation of requests": single}


def same_kind(
    population: Population, batch: int, rng: np.random.Generator, alike: int | None = None
) -> float:
    """Return experts of a batch of one kind, or with so many of one, against a mixed batch, percent; kinds by their share."""
    mixed = population.active(batch, rng, _DRAWS)
    others = 0 if alike is None else batch - alike
    found = 0.0
    for label, share in enumerate(population.shares):
        members = np.flatnonzero(population.label == label)
        chosen = rng.choice(members, (_DRAWS, batch - others))
        if others:
            anyone = rng.choice(len(population), (_DRAWS, others), p=population.chances)
            chosen = np.concatenate([chosen, anyone], axis=1)
        survival = np.mean([float(np.exp(population.logs[some].sum(axis=0)).sum()) for some in chosen])
        found += share * (population.n_experts - float(survival) / population.n_layers)
    return 100 * (found / mixed - 1)


def correlations(population: Population) -> tuple[float, float]:
    """Return Pearson's correlation of prompt counts and decode probabilities: pooled by kind, and of single requests; means."""
    decode = -np.expm1(population.logs)
    prompt = population.prefill.reshape(len(population), -1) / population.prompt_tokens[:, None]
    pooled = [
        _pearson(
            prompt[population.label == label].mean(axis=0), decode[population.label == label].mean(axis=0)
        )
        for label in range(len(population.labels))
    ]
    single = [_pearson(*rows) for rows in zip(prompt[:500], decode[:500], strict=True)]
    return float(np.mean(pooled)), float(np.mean(single))


def _pearson(x: npt.NDArray[np.floating], y: npt.NDArray[np.floating]) -> float:
    return float(np.corrcoef(x, y)[0, 1])
