"""The fit: samples to centroids, judged on held-out records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.centroids import CentroidSet, dump, load
from eldr.core.clustering import Clustering, align, balanced_kmeans
from eldr.core.layers import LayerChoice
from eldr.core.pairs import Rows
from eldr.core.signature import Floats
from eldr.fit.baseline import Baseline, measure_baseline
from eldr.fit.evaluation import Evaluation, evaluate, similarities_to
from eldr.fit.form import Basis, SignatureForm, choose_form, make_signatures
from eldr.fit.samples import FitError, Samples

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """Parameters of a fit.

    Attributes
    ----------
    k : int
        Centroids, one per decode engine.
    restarts : int
        K-means seedings.
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
class FitResult:
    """Results of a fit.

    Attributes
    ----------
    centroids : CentroidSet
        As it reads back from its file, float16 rounding included.
    choices : dict of str to LayerChoice
        Layer selection per weighting; empty where decode-time activations were too few.
    basis : {"correlation", "uninformative", "no_decode"}
        What the kept layers rest on, see :data:`eldr.fit.form.Basis`.
    samples, fitted : int
        Records used altogether, and for the centroids.
    evaluation : Evaluation or None
        None where held-out records were too few.
    replaces : bool
        Whether there is an active set to compare with.
    baseline : Baseline or None
        None where no held-out record has a signature.
    """

    centroids: CentroidSet
    choices: dict[str, LayerChoice]
    basis: Basis
    clustering: Clustering
    samples: int
    fitted: int
    skipped: dict[str, int]
    evaluation: Evaluation | None
    replaces: bool
    baseline: Baseline | None

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
        The set in use: the new one keeps its engine identities, and is compared with it.
    progress : callable
        Called with a phrase as each stage begins.

    Raises
    ------
    FitError
        If the samples cannot carry ``k`` centroids.
    """
    rng = np.random.default_rng(settings.seed)
    train, held_out = split(len(samples))
    decoded = np.intersect1d(train, samples.decoded, assume_unique=True)
    progress(f"choosing layers on {len(decoded)} records with decode-time activations")
    form = choose_form(samples, train, rng)
    points = make_signatures(samples, train, form.weights, form.mask)
    # Rows have length 1, or 0 without any weight.
    some = points.any(axis=1)
    if not some.all():
        points = points[some]
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
    evaluation = evaluate(
        samples,
        held_out,
        centroids,
        active,
        k=settings.k,
        seed=settings.seed,
        tau=settings.tau,
        min_candidates=settings.min_candidates,
    )
    return FitResult(
        centroids=centroids,
        choices=form.choices,
        basis=form.basis,
        clustering=clustering,
        samples=len(samples),
        fitted=len(points),
        skipped=samples.skipped,
        evaluation=evaluation,
        replaces=active is not None,
        baseline=measure_baseline(similarities_to(samples, held_out, centroids, settings.k)),
    )


def split(n: int) -> tuple[Rows, Rows]:
    """Hold out every second record of the newest half.

    They are recent, never fitted on, and enough to judge by.
    """
    held = np.arange(n - n // 2 + 1, n, 2)
    return np.setdiff1d(np.arange(n), held), held


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
        rho=form.rho,
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
