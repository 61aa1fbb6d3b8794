"""How signatures are made: which layers, and with which weights."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.centroids import Weighting
from eldr.core.layers import LayerChoice, choose_layers
from eldr.core.pairs import Pairs, Rows, activation_distances, sample_pairs
from eldr.core.signature import Floats, document_frequency, inverse_document_frequency, signatures
from eldr.fit.samples import Samples

N_PAIRS = 30_000
MIN_DECODED = 32
"""Below so many records with decode-time activations, rho is not significant."""
MIN_RHO = 0.1
"""Below it, decode-time activations do not separate layers: the greedy choice would follow noise."""
FEW_TOUCHED = 0.5
"""Where a prompt touches less of the cells on average, which ones it touches is more informative than how often: idf."""
_BATCH = 1024  # records whose signatures are made at a time

Basis = Literal["correlation", "uninformative", "no_decode"]
"""What the layers rest on: the best correlation; all of them since there is none; all of them for want of data."""


class SignatureForm(NamedTuple):
    """How signatures are made.

    Attributes
    ----------
    weighting : {"counts", "counts_idf"}
    weights : ndarray of float32, shape (n_layers, n_experts)
    mask : ndarray of bool, shape (n_layers,)
        Layers to keep.
    choices : dict of str to LayerChoice
        Layer selection per weighting; empty where decode-time activations were too few.
    basis : {"correlation", "uninformative", "no_decode"}
    rho : float or None
        Correlation of the signatures so made.
    """

    weighting: Weighting
    weights: Floats
    mask: npt.NDArray[np.bool_]
    choices: dict[str, LayerChoice]
    basis: Basis
    rho: float | None


def choose_form(samples: Samples, rows: Rows, rng: np.random.Generator) -> SignatureForm:
    """Choose counts or counts x idf, and their layers, by rho.

    Parameters
    ----------
    samples : Samples
    rows : ndarray of int, shape (n_rows,)
        The records to look at.
    rng : numpy.random.Generator
    """
    df = sum(document_frequency(samples.prefill[part]) for part in batches(rows))
    assert isinstance(df, np.ndarray)  # noqa: S101 - there is a record
    weights: dict[Weighting, Floats] = {
        "counts": np.ones(df.shape, dtype=np.float32),
        "counts_idf": inverse_document_frequency(df, len(rows)),
    }
    usable = [name for name, weight in weights.items() if weight.any()]
    known = np.intersect1d(rows, samples.decoded, assume_unique=True)
    choices: dict[Weighting, LayerChoice] = {}
    if len(known) >= MIN_DECODED:
        choices = _choices(samples, known, {name: weights[name] for name in usable}, rng)
    best = max(choices, key=lambda name: choices[name].rho, default=None)
    named = {str(name): choice for name, choice in choices.items()}
    if best is not None and choices[best].rho >= MIN_RHO:
        choice = choices[best]
        return SignatureForm(best, weights[best], choice.mask, named, "correlation", choice.rho)
    few = float(df.mean()) < FEW_TOUCHED * len(rows) and "counts_idf" in usable
    plain: Weighting = "counts_idf" if few else "counts"
    every = np.ones(len(df), dtype=np.bool_)
    if choices:
        return SignatureForm(plain, weights[plain], every, named, "uninformative", choices[plain].curve[-1])
    return SignatureForm(plain, weights[plain], every, named, "no_decode", None)


def _choices(
    samples: Samples, known: Rows, weights: dict[Weighting, Floats], rng: np.random.Generator
) -> dict[Weighting, LayerChoice]:
    pairs: Pairs = sample_pairs(len(known), N_PAIRS, rng)
    target = activation_distances(samples.decode, pairs, known)

    def choose(name: Weighting) -> LayerChoice:
        # A weight of 1 changes no bit: leaving it out only saves the product.
        weight = None if name == "counts" else weights[name]
        return choose_layers(samples.prefill, target, pairs, weights=weight, rows=known)

    # NumPy lets go of the interpreter while it sorts: two weightings use two cores.
    with ThreadPoolExecutor(len(weights)) as pool:
        return dict(zip(weights, pool.map(choose, weights), strict=True))


def make_signatures(samples: Samples, rows: Rows, weights: Floats, mask: npt.NDArray[np.bool_]) -> Floats:
    """Return unit signatures, shape (n_rows, n_kept * n_experts).

    They are made with no second copy.
    """
    made = np.empty((len(rows), int(mask.sum()) * weights.shape[1]), dtype=np.float32)
    at = 0
    for part in batches(rows):
        made[at : at + len(part)] = signatures(samples.prefill[part], weights, mask)
        at += len(part)
    return made


def batches(rows: Rows) -> Iterator[Rows]:
    """Yield rows a few at a time.

    Signatures of all of them would be much larger than their counts.
    """
    for at in range(0, len(rows), _BATCH):
        yield rows[at : at + _BATCH]
