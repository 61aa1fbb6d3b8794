"""Calibration samples: a bounded, consistent choice of log records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.siglog import Record

Unsigned = npt.NDArray[np.unsignedinteger]

OTHER_MODEL, TOO_OLD, INEXACT = "other model", "older than the look-back", "inexact counts"
DAMAGED, WRONG_SUMS = "damaged records", "layers that do not sum to tokens x top-k"
AHEAD, EMPTY = "times that lie ahead", "prompts without a token"
PILED = "experts with more hits than there were tokens"
_REMEDIES = {
    OTHER_MODEL: "check the model's name, or send traffic to this model,",
    TOO_OLD: "look back further, or send traffic,",
    INEXACT: "let prompts pass prefill engines that count every token (metric eldr_router_signatures_total shows the quality)",
    AHEAD: "set the clocks of the routers' nodes right",
    EMPTY: "run the same version of the plug-in on all engines",
    DAMAGED: "run routers and this command in versions that belong together",
    WRONG_SUMS: "run the same version of the plug-in on all engines",
    PILED: "run the same version of the plug-in on all engines",
}
"""What to do where most records are left out for a reason."""


class FitError(Exception):
    """The fit cannot be made; the message names the remedy.

    ``reason`` is CamelCase, for conditions.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Records of one model, oldest first.

    Attributes
    ----------
    prefill : ndarray of uint16 or uint32, shape (n, n_layers, n_experts)
        Prompt counts.
    decode : ndarray of uint16 or uint32, shape (n, n_layers, n_experts)
        Counts of generated tokens, zero where unknown.
    decode_tokens : ndarray of int, shape (n,)
        Tokens that ``decode`` counts; 0 where unknown.
    in_flight : ndarray of int, shape (n,)
        Load of the chosen engine at each placement.
    skipped : dict of str to int
        Why records were left out, and how many.
    times : ndarray of float64, shape (n,), optional
        Unix time of each request's arrival, seconds, ascending; None for samples that were never sent.
    """

    prefill: Unsigned
    decode: Unsigned
    decode_tokens: npt.NDArray[np.int64]
    in_flight: npt.NDArray[np.int64]
    top_k: int
    skipped: dict[str, int]
    times: npt.NDArray[np.float64] | None = None

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
            None if self.times is None else self.times[positions],
        )


def reservoir(
    records: Iterable[Record],
    limit: int,
    rng: np.random.Generator,
    *,
    model: str,
    since: float,
    until: float = math.inf,
) -> tuple[list[Record], Counter[str]]:
    """Choose at most ``limit`` usable records of a stream, uniformly.

    Vitter's algorithm R.

    Parameters
    ----------
    records : iterable of Record
    limit : int
    rng : numpy.random.Generator
    model : str
        Records of other models are left out.
    since : float
        Unix time; older records are left out.
    until : float, optional
        Unix time; newer records are left out.

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
        if reason := unusable(record, model, since, until):
            skipped[reason] += 1
            continue
        seen += 1
        if len(chosen) < limit:
            chosen.append(record)
        elif (slot := int(rng.integers(seen))) < limit:
            chosen[slot] = record
    return chosen, skipped


def unusable(record: Record, model: str, since: float = 0.0, until: float = math.inf) -> str | None:
    """Return why a record cannot be used; None if it can."""
    if record.model != model:
        return OTHER_MODEL
    if record.time < since:
        return TOO_OLD
    if not _in_range(record):
        return DAMAGED
    if record.time > until:
        return AHEAD
    if record.prompt_tokens <= 0:
        return EMPTY
    if not record.exact:
        return INEXACT
    # looked at before the choice: else records that lie would take the place of others
    try:
        return _Counted.of(record).wrong()
    except ValueError:
        return DAMAGED


def _in_range(record: Record) -> bool:
    """Return whether a record's numbers are in range; its counts are checked elsewhere."""
    return (
        math.isfinite(record.time)
        and record.n_layers > 0
        and 1 <= record.top_k <= record.n_experts
        and 0 <= record.in_flight < 1 << 31
    )


def make_samples(records: list[Record], skipped: Counter[str]) -> Samples:
    """Turn records into arrays; FitError without a common geometry."""
    if not records:
        raise _nothing_left(skipped)
    shapes = Counter((record.n_layers, record.n_experts, record.top_k) for record in records)
    (layers, experts, top_k), _ = shapes.most_common(1)[0]
    kept: list[_Counted] = []
    skipped = Counter(skipped)
    for record in sorted(records, key=lambda record: record.time):
        if (record.n_layers, record.n_experts, record.top_k) != (layers, experts, top_k):
            skipped["other geometry"] += 1
            continue
        try:
            counted = _Counted.of(record)
        except ValueError:
            skipped[DAMAGED] += 1
            continue
        if wrong := counted.wrong():
            skipped[wrong] += 1
        else:
            kept.append(counted)
    if not kept:
        raise _nothing_left(skipped)
    return Samples(
        prefill=_stack([counted.prefill for counted in kept], (layers, experts)),
        decode=_stack([counted.decode for counted in kept], (layers, experts)),
        decode_tokens=np.array(
            [0 if counted.decode is None else counted.record.decode_tokens for counted in kept]
        ),
        in_flight=np.array([counted.record.in_flight for counted in kept]),
        top_k=top_k,
        skipped=dict(skipped),
        times=np.array([counted.record.time for counted in kept], dtype=np.float64),
    )


class _Counted(NamedTuple):
    """A record and its counts; ``decode`` is None where the engine did not vouch for it."""

    record: Record
    prefill: Unsigned
    decode: Unsigned | None

    @staticmethod
    def of(record: Record) -> _Counted:
        """Read the counts of a record; ValueError if its bytes disagree."""
        return _Counted(
            record, record.prefill_counts(), record.decode_counts() if record.decode_exact else None
        )

    def wrong(self) -> str | None:
        """Return why counts cannot be what an engine vouched for: every layer, every token, ``top_k`` experts each."""
        counted = [(self.prefill, self.record.prompt_tokens)]
        if self.decode is not None:
            counted.append((self.decode, self.record.decode_tokens))
        for counts, tokens in counted:
            if not (counts.sum(axis=1) == tokens * self.record.top_k).all():
                return WRONG_SUMS
            if counts.max() > tokens:
                return PILED
        return None


def _stack(counts: Sequence[Unsigned | None], shape: tuple[int, int]) -> Unsigned:
    """Return counts as one array of the smallest type that holds them, zero where there are none."""
    largest = max((int(one.max()) for one in counts if one is not None), default=0)
    dtype: type[np.unsignedinteger] = np.uint16 if largest < 1 << 16 else np.uint32
    stacked: Unsigned = np.zeros((len(counts), *shape), dtype=dtype)
    for row, one in zip(stacked, counts, strict=True):
        if one is not None:
            row[:] = one
    return stacked


def too_few(usable: int, least: int, skipped: Mapping[str, int]) -> FitError:
    """Return the error of a fit that was to rest on more records."""
    left_out = f" ({_explain(skipped)})" if skipped else ""
    remedy = "send more traffic, log a larger share of it, or ask for fewer records"
    return FitError(
        "TooFewSamples",
        f"{usable} usable records, at least {least} are needed{left_out}; {remedy}, and try again",
    )


def _nothing_left(skipped: Counter[str]) -> FitError:
    reasons = sorted(skipped, key=lambda reason: (reason == OTHER_MODEL, -skipped[reason]))
    remedy = _REMEDIES.get(reasons[0] if reasons else "", "send traffic")
    return FitError("NoSamples", f"no usable record in the log ({_explain(skipped)}); {remedy} and try again")


def _explain(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in Counter(skipped).most_common()) or "it is empty"
