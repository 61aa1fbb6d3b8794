"""Ways to make a signature of a prompt: how well each one predicts decode steps, and what placement by it brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from eldr.core.clustering import balanced_kmeans
from eldr.core.layers import choose_layers
from eldr.core.pairs import Pairs, activation_distances, sample_pairs
from eldr.core.signature import (
    Counts,
    Floats,
    document_frequency,
    inverse_document_frequency,
    signatures,
)
from eldr.sim.traces import Traces
from eldr.simulate.engine import Limits
from eldr.simulate.step_times import parse_step_time
from eldr_bench.proof import require
from eldr_lab.correlation.statistics import Capture
from eldr_lab.synthetic.captured import Captured
from eldr_lab.synthetic.contenders import BALANCED, parse_contender
from eldr_lab.synthetic.measures import Measures
from eldr_lab.synthetic.setting import Setting
from eldr_lab.synthetic.study import Prepared, meet, run_one

PAIRS = 30_000
ENGINES = 8
BATCH = 16.0
TOKENS = 96
SECONDS = 60.0
LAW = "qwen3-30b-mi300x"
_RESTARTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A way to make signatures: what is summed over a prompt's tokens, and whether rare experts weigh more.

    Attributes
    ----------
    values : ndarray, shape (n_requests, n_layers, n_experts)
        Not negative.
    rarity : bool
        Whether cells are weighed by inverse document frequency.
    """

    values: Counts
    rarity: bool = False

    def weights(self, rows: npt.NDArray[np.intp]) -> Floats:
        """Return each cell's weight by some of the requests, shape (n_layers, n_experts)."""
        if not self.rarity:
            return np.ones(self.values.shape[1:], dtype=np.float32)
        return inverse_document_frequency(document_frequency(self.values[rows]), len(rows))


def forms(capture: Capture) -> dict[str, Form]:
    """Return the six forms that the paper compares (Figure 7), by name."""
    counts = capture.prefill
    return {
        "counts x idf": Form(counts, rarity=True),
        "counts": Form(counts),
        "square root of counts": Form(np.sqrt(counts.astype(np.float32))),
        "gate probability": Form(capture.probability),
        "gate logit": Form(capture.logit),
        "binary": Form((counts > 0).astype(np.uint8)),
    }


@dataclass(frozen=True, slots=True)
class Rho:
    """Spearman's rho between distances of signatures and of decode activations.

    Attributes
    ----------
    all : float
        With all layers.
    chosen : float
        With the layers that are chosen greedily (Figure 8).
    layers : tuple of int
        Those.
    """

    all: float
    chosen: float
    layers: tuple[int, ...]


def correlations(capture: Capture, rng: np.random.Generator) -> dict[str, Rho]:
    """Return rho of every form, over the same pairs of requests."""
    everybody = np.arange(len(capture.kind))
    pairs: Pairs = sample_pairs(len(everybody), PAIRS, rng)
    target = activation_distances(capture.activations, pairs)
    found: dict[str, Rho] = {}
    for name, form in forms(capture).items():
        choice = choose_layers(form.values, target, pairs, weights=form.weights(everybody))
        layers = tuple(int(layer) for layer in np.flatnonzero(choice.mask))
        found[name] = Rho(choice.curve[-1], choice.rho, layers)
    return found


def in_pools(capture: Capture, seeds: Sequence[int]) -> dict[str, list[Measures]]:
    """Serve the requests in simulated pools, by JSQ and by the band with centroids of each form.

    Half of each kind's requests are fitted on, the other half is served. Seeds change which half, arrivals and clusters; under one
    seed all meet the same requests at the same times.

    Returns
    -------
    dict
        By form, or ``JSQ``; one element a seed.
    """
    names = tuple(kind for kind, _ in capture.kinds())
    plain, band = parse_contender("JSQ"), parse_contender("ELDR")
    setting = _setting(capture.prefill.shape[2])
    runs: dict[str, list[Measures]] = {}
    for seed in seeds:
        mixed = _mixed(capture, np.random.default_rng([seed, 3]))
        traces = Traces(
            prefill_counts=mixed.prefill.astype(np.uint16),
            prompt_tokens=mixed.prompt_tokens.astype(np.uint16),
            decode_experts=mixed.decode.astype(np.uint8),
            kind=np.array([names.index(kind) for kind in mixed.kind.tolist()], dtype=np.uint8),
            kinds=names,
        )
        traffic = Captured(traces, names).traffic(0)
        fitted, served = (np.array(rows) for rows in traces.split(names))
        prepared = Prepared(seed, traffic.requests, {})
        load = meet(prepared, setting)
        runs.setdefault(plain.text, []).append(run_one(prepared, setting, plain, load))
        for name, form in forms(mixed).items():
            cosines = _cosines(form, traffic.calibration.decode, fitted, served, seed)
            seen = replace(prepared, similarity={(ENGINES, BALANCED): cosines})
            banded = run_one(seen, setting, band, load)
            require(
                banded != runs[plain.text][-1], f"the band by {name} placed every request as {plain.text} did"
            )
            runs.setdefault(name, []).append(banded)
    return runs


def _mixed(capture: Capture, rng: np.random.Generator) -> Capture:
    """Return the requests in another order: halves of a kind are every second one."""
    order = rng.permutation(len(capture.kind))
    return Capture(**{field.name: getattr(capture, field.name)[order] for field in fields(Capture)})


def _cosines(
    form: Form, decode: Counts, fitted: npt.NDArray[np.intp], served: npt.NDArray[np.intp], seed: int
) -> Floats:
    """Return the cosine of every served request to balanced centroids of the fitted ones, shape (n_served, ENGINES)."""
    weights = form.weights(fitted)
    pairs: Pairs = sample_pairs(len(fitted), PAIRS, np.random.default_rng([seed, 1]))
    mask = choose_layers(
        form.values[fitted], activation_distances(decode, pairs), pairs, weights=weights
    ).mask
    return to_clusters(
        form.values[fitted], form.values[served], weights, mask, ENGINES, np.random.default_rng([seed, 2])
    )


def to_clusters(  # noqa: PLR0917 - what a signature is made of, and how many clusters
    fitted: Counts,
    served: Counts,
    weights: Floats,
    mask: npt.NDArray[np.bool_],
    k: int,
    rng: np.random.Generator,
) -> Floats:
    """Return the cosine of every served request to ``k`` balanced centroids of the fitted ones, shape (n_served, k)."""
    points = signatures(fitted, weights, mask)
    told = points[np.linalg.norm(points, axis=1) > 0.5]  # who has no preference belongs nowhere
    centers = balanced_kmeans(told, k, rng, restarts=_RESTARTS).centers
    found: Floats = signatures(served, weights, mask) @ centers.T
    return found


def _setting(n_experts: int) -> Setting:
    return Setting(
        engines=ENGINES,
        rate=None,
        batch=BATCH,
        step_time=parse_step_time(LAW, n_experts),
        speeds=(1.0,),
        limits=Limits(max_num_seqs=512),
        seconds=SECONDS,
        output_tokens=TOKENS,
        sampled=True,
    )
