"""The fit: samples to centroids, judged on held-out records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.centroids import CentroidSet, Weighting, dump, load
from eldr.core.balancers import JSQ
from eldr.core.band import BandJSQ
from eldr.core.clustering import Clustering, align, balanced_kmeans
from eldr.core.layers import LayerChoice, Pairs, activation_distances, choose_layers, sample_pairs
from eldr.core.placement_sim import PlacementResult, inclusion_probabilities, replay
from eldr.core.policy import Policy
from eldr.core.signature import Floats, document_frequency, inverse_document_frequency, signatures
from eldr.fit.samples import FitError, Samples

N_PAIRS = 30_000
MIN_DECODED = 32
"""Below so many records with decode-time activations, rho says nothing: all layers, plain counts."""
MIN_HELD_OUT = 16
MIN_BATCH, MAX_BATCH = 4, 64

Progress = Callable[[str], None]


class SignatureForm(NamedTuple):
    """How signatures are made: what :func:`_choose_form` decides."""

    weighting: Weighting
    weights: Floats
    mask: npt.NDArray[np.bool_]
    choices: dict[str, LayerChoice]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """Parameters of a fit.

    Attributes
    ----------
    k : int
        Centroids, one per decode worker.
    model : str
    seed : int
    restarts : int
        K-means seedings.
    tau : float
    min_candidates : int
        The band that the prediction assumes.
    """

    k: int
    model: str
    seed: int = 1
    restarts: int = 4
    tau: float = 0.1
    min_candidates: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Predicted placement on held-out records.

    Attributes
    ----------
    jsq, new : PlacementResult
    active : PlacementResult or None
        With the set that is active now.
    held_out : int
        Records that it rests on.
    """

    jsq: PlacementResult
    new: PlacementResult
    active: PlacementResult | None
    held_out: int

    @property
    def reduction(self) -> float:
        """Share of active experts that the new set saves against JSQ."""
        return 1.0 - self.new.active_experts / self.jsq.active_experts

    @property
    def active_reduction(self) -> float | None:
        """The same for the active set."""
        return None if self.active is None else 1.0 - self.active.active_experts / self.jsq.active_experts


@dataclass(frozen=True, slots=True, eq=False)
class FitResult:
    """Everything that a fit found.

    Attributes
    ----------
    centroids : CentroidSet
        As it reads back from its file, float16 rounding included.
    choices : dict of str to LayerChoice
        Layer selection per weighting; empty where decode-time activations were too few.
    clustering : Clustering
    samples, fitted : int
        Records used altogether, and for the centroids.
    skipped : dict of str to int
    evaluation : Evaluation or None
        None where held-out records were too few.
    """

    centroids: CentroidSet
    choices: dict[str, LayerChoice]
    clustering: Clustering
    samples: int
    fitted: int
    skipped: dict[str, int]
    evaluation: Evaluation | None

    @property
    def sizes(self) -> list[int]:
        """Fitted records per centroid, in slot order."""
        return [int(size) for size in np.bincount(self.clustering.labels, minlength=self.centroids.k)]


def fit(
    samples: Samples,
    settings: FitSettings,
    *,
    now: float,
    active: CentroidSet | None = None,
    progress: Progress = lambda _: None,
) -> FitResult:
    """Fit a centroid set.

    Parameters
    ----------
    samples : Samples
    settings : FitSettings
    now : float
        Unix time, stored in the set.
    active : CentroidSet, optional
        The set in use: the new one keeps its worker identities, and is compared with it.
    progress : callable
        Called with a phrase as each stage begins.

    Raises
    ------
    FitError
        If the samples cannot carry ``k`` centroids.
    """
    rng = np.random.default_rng(settings.seed)
    train, held_out = split(len(samples))
    training = samples.take(train)
    progress(f"choosing layers on {len(training.decoded)} records with decode-time activations")
    form = _choose_form(training, rng)
    points = signatures(training.prefill, form.weights, form.mask)
    points = points[np.linalg.norm(points, axis=1) > 0.5]
    if len(points) < settings.k:
        raise FitError(
            "NotEnoughSamples",
            f"{len(points)} records with a signature cannot fill {settings.k} clusters; wait for more",
        )
    progress(f"clustering {len(points)} signatures into {settings.k}")
    clustering = balanced_kmeans(points, settings.k, rng, restarts=settings.restarts)
    centroids = _centroid_set(samples, settings, now, form, clustering.centers)
    if active is not None and (active.n_layers, active.n_experts) == (
        centroids.n_layers,
        centroids.n_experts,
    ):
        order = align(_spread(centroids), _spread(active))
        clustering = _reorder(clustering, order)
        centroids = _centroid_set(samples, settings, now, form, clustering.centers)
    else:
        active = None
    centroids = load(dump(centroids))
    progress("predicting placement on held-out records")
    evaluation = _evaluate(samples.take(held_out), centroids, active, settings)
    return FitResult(
        centroids, form.choices, clustering, len(samples), len(points), samples.skipped, evaluation
    )


def split(n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Hold out every third record of the newest half: recent, and never fitted on."""
    held = np.arange(n - n // 2 + 2, n, 3)
    return np.setdiff1d(np.arange(n), held), held


def _choose_form(training: Samples, rng: np.random.Generator) -> SignatureForm:
    """Let rho choose between plain counts and counts x idf, and the layers of each."""
    df = document_frequency(training.prefill)
    weights: dict[Weighting, Floats] = {
        "counts": np.ones(df.shape, dtype=np.float32),
        "counts_idf": inverse_document_frequency(df, len(training)),
    }
    known = training.take(training.decoded)
    if len(known) < MIN_DECODED:
        return SignatureForm("counts", weights["counts"], np.ones(len(df), dtype=np.bool_), {})
    pairs: Pairs = sample_pairs(len(known), N_PAIRS, rng)
    target = activation_distances(known.decode, pairs)
    choices: dict[str, LayerChoice] = {
        name: choose_layers(known.prefill * weight, target, pairs)
        for name, weight in weights.items()
        if weight.any()
    }
    best: Weighting = "counts"
    if "counts_idf" in choices and choices["counts_idf"].rho > choices["counts"].rho:
        best = "counts_idf"
    return SignatureForm(best, weights[best], choices[best].mask, choices)


def _centroid_set(
    samples: Samples, settings: FitSettings, now: float, form: SignatureForm, centers: Floats
) -> CentroidSet:
    return CentroidSet(
        model=settings.model,
        n_layers=form.weights.shape[0],
        n_experts=form.weights.shape[1],
        top_k=samples.top_k,
        kept=tuple(np.flatnonzero(form.mask).tolist()),
        weighting=form.weighting,
        weights=form.weights[form.mask],
        centers=centers,
        samples=len(samples),
        created=now,
        rho=form.choices[form.weighting].rho if form.choices else None,
    )


def _spread(centroids: CentroidSet) -> Floats:
    """Return centres over all layers, so that sets with other masks can be compared."""
    full = np.zeros((centroids.k, centroids.n_layers, centroids.n_experts), dtype=np.float32)
    full[:, list(centroids.kept)] = centroids.centers.reshape(
        centroids.k, len(centroids.kept), centroids.n_experts
    )
    return full.reshape(centroids.k, -1)


def _reorder(clustering: Clustering, order: npt.NDArray[np.intp]) -> Clustering:
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return Clustering(
        clustering.centers[order], position[clustering.labels], clustering.inertia, clustering.n_iter
    )


def _evaluate(
    held_out: Samples, centroids: CentroidSet, active: CentroidSet | None, settings: FitSettings
) -> Evaluation | None:
    known = held_out.take(held_out.decoded)
    if len(known) < MIN_HELD_OUT or settings.k < 2:
        return None
    inclusion = inclusion_probabilities(known.decode, known.decode_tokens)
    batch = int(np.clip(round(float(known.in_flight.mean())), MIN_BATCH, MAX_BATCH))
    arrivals = np.random.default_rng(settings.seed).integers(0, len(known), 14 * settings.k * batch)
    band = BandJSQ(tau=settings.tau, min_candidates=min(settings.min_candidates, settings.k))

    def run(policy: Policy, similarity: Floats | None) -> PlacementResult:
        rng = np.random.default_rng(settings.seed)
        return replay(policy, arrivals, inclusion, similarity, n_workers=settings.k, batch=batch, rng=rng)

    return Evaluation(
        jsq=run(JSQ(), None),
        new=run(band, _similarities(centroids, known, settings.k)),
        active=None if active is None else run(band, _similarities(active, known, settings.k)),
        held_out=len(known),
    )


def _similarities(centroids: CentroidSet, samples: Samples, k: int) -> Floats:
    """Return cosines to the first ``k`` slots; NaN for slots that the set does not know."""
    scores = np.full((len(samples), k), np.nan, dtype=np.float32)
    known = (
        signatures(samples.prefill, centroids.full_weights(), centroids.layer_mask) @ centroids.centers[:k].T
    )
    scores[:, : known.shape[1]] = known
    return scores
