"""Calibration samples: a bounded, consistent choice of log records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.siglog import Record


class FitError(Exception):
    """The fit cannot be made; ``reason`` is CamelCase for conditions, the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Records of one model, oldest first.

    Attributes
    ----------
    prefill : ndarray of uint32, shape (n, n_layers, n_experts)
        Prompt counts.
    decode : ndarray of uint32, shape (n, n_layers, n_experts)
        Counts of generated tokens, zero where unknown.
    decode_tokens : ndarray of int, shape (n,)
        Tokens that ``decode`` counts; 0 where unknown.
    in_flight : ndarray of int, shape (n,)
        Load of the chosen worker at each placement.
    top_k : int
    skipped : dict of str to int
        Why records were left out, and how many.
    """

    prefill: npt.NDArray[np.uint32]
    decode: npt.NDArray[np.uint32]
    decode_tokens: npt.NDArray[np.int64]
    in_flight: npt.NDArray[np.int64]
    top_k: int
    skipped: dict[str, int]

    def __len__(self) -> int:
        return len(self.prefill)

    @property
    def decoded(self) -> npt.NDArray[np.intp]:
        """Positions of the samples whose decode-time activations are known."""
        return np.flatnonzero(self.decode_tokens > 0)

    def take(self, positions: npt.NDArray[np.intp]) -> Samples:
        """Return some of the samples."""
        return Samples(
            self.prefill[positions],
            self.decode[positions],
            self.decode_tokens[positions],
            self.in_flight[positions],
            self.top_k,
            self.skipped,
        )


def reservoir(
    records: Iterable[Record], limit: int, rng: np.random.Generator, *, model: str, since: float
) -> tuple[list[Record], Counter[str]]:
    """Choose at most ``limit`` usable records uniformly from a stream of any length (Vitter's algorithm R).

    Parameters
    ----------
    records : iterable of Record
    limit : int
    rng : numpy.random.Generator
    model : str
        Records of other models are left out.
    since : float
        Unix time; older records are left out.

    Returns
    -------
    chosen : list of Record
    skipped : Counter
        Records left out, by reason.
    """
    chosen: list[Record] = []
    skipped: Counter[str] = Counter()
    seen = 0
    for record in records:
        if reason := _unusable(record, model, since):
            skipped[reason] += 1
            continue
        seen += 1
        if len(chosen) < limit:
            chosen.append(record)
        elif (slot := int(rng.integers(seen))) < limit:
            chosen[slot] = record
    return chosen, skipped


def _unusable(record: Record, model: str, since: float) -> str | None:
    if record.model != model:
        return "other model"
    if record.time < since:
        return "older than the look-back"
    if not record.exact:
        return "inexact counts"
    return None


def make_samples(records: list[Record], skipped: Counter[str]) -> Samples:
    """Turn records into arrays.

    Raises
    ------
    FitError
        If there is none, or if they disagree in geometry and no majority can be told.
    """
    if not records:
        raise FitError(
            "NoSamples", f"no usable record in the log ({_explain(skipped)}); send traffic and fit again"
        )
    shapes = Counter((record.n_layers, record.n_experts, record.top_k) for record in records)
    (layers, experts, top_k), _ = shapes.most_common(1)[0]
    kept: list[tuple[Record, npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger] | None]] = []
    skipped = Counter(skipped)
    for record in sorted(records, key=lambda record: record.time):
        if (record.n_layers, record.n_experts, record.top_k) != (layers, experts, top_k):
            skipped["other geometry"] += 1
            continue
        try:
            kept.append(
                (record, record.prefill_counts(), record.decode_counts() if record.decode_exact else None)
            )
        except ValueError:
            skipped["damaged counts"] += 1
    if not kept:
        raise FitError("NoSamples", f"no usable record in the log ({_explain(skipped)})")
    empty = np.zeros((layers, experts), dtype=np.uint32)
    return Samples(
        prefill=np.stack([prefill for _, prefill, _ in kept]).astype(np.uint32),
        decode=np.stack([empty if decode is None else decode for _, _, decode in kept]).astype(np.uint32),
        decode_tokens=np.array([0 if decode is None else record.decode_tokens for record, _, decode in kept]),
        in_flight=np.array([record.in_flight for record, _, _ in kept]),
        top_k=top_k,
        skipped=dict(skipped),
    )


def _explain(skipped: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.most_common()) or "it is empty"
