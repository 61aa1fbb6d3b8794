"""What ``kv_transfer_params`` and activation records hold of ours: expert counts, and the deadline of a pull."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.contract import COUNTS_VERSION, PULL_BEFORE_KEY

try:  # 2 us for 16 KB instead of 20 or more
    from pybase64 import b64decode, b64encode
except ImportError:  # engines get this module without its dependencies, and encode only
    from base64 import b64decode, b64encode  # type: ignore[assignment]

_DTYPES: dict[str, np.dtype[np.unsignedinteger[Any]]] = {
    "uint16": np.dtype(np.uint16).newbyteorder("<"),
    "uint32": np.dtype(np.uint32).newbyteorder("<"),
}
_FAR = 1e12  # seconds; nothing beyond it, nor infinity or NaN, is a time
_LIMIT = 1 << 22  # cells; far above any model, so that a hostile engine cannot exhaust memory


class WireError(ValueError):
    """A value that breaks the contract; the message names the field and the value."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertCounts:
    """How many of a request's tokens each expert was chosen for.

    Attributes
    ----------
    counts : ndarray of uint16 or uint32, shape (n_layers, n_experts)
        Read-only hits per mixture-of-experts layer and expert.
    exact : bool
        Whether the engine vouches that every layer sums to ``tokens * top_k``.
    """

    counts: npt.NDArray[np.unsignedinteger[Any]]
    top_k: int
    tokens: int
    exact: bool

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_layers, n_experts)``."""
        layers, experts = self.counts.shape
        return layers, experts


def _integer(fields: Mapping[str, Any], name: str, low: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise WireError(f"{name}: expected an integer >= {low}, got {value!r}")
    return value


def decode_counts(fields: object) -> ExpertCounts:
    """Parse one expert-count object (see :data:`eldr.contract.ELDR_KEY`).

    Parameters
    ----------
    fields : object
        The decoded JSON value; anything but a well-formed object is refused.

    Returns
    -------
    ExpertCounts

    Raises
    ------
    WireError
        If a field is missing, out of range or disagrees with another; the message names it.
    """
    if not isinstance(fields, Mapping):
        raise WireError(f"expected an object, got {type(fields).__name__}")
    if fields.get("v") != COUNTS_VERSION:
        raise WireError(
            f"v: expected {COUNTS_VERSION}, got {fields.get('v')!r}; engine plugin and router must match"
        )
    layers, experts = _integer(fields, "layers", 1), _integer(fields, "experts", 1)
    top_k, tokens = _integer(fields, "topk", 1), _integer(fields, "tokens", 0)
    if top_k > experts:
        raise WireError(f"topk: expected at most {experts} experts, got {top_k}")
    if layers * experts > _LIMIT:
        raise WireError(f"layers x experts: {layers} x {experts} exceeds {_LIMIT} cells")
    dtype = fields.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise WireError(f"dtype: expected one of {', '.join(_DTYPES)}, got {dtype!r}")
    text = fields.get("counts")
    if not isinstance(text, str):
        raise WireError(f"counts: expected base64 text, got {type(text).__name__}")
    try:
        raw = b64decode(text, validate=True)
    except ValueError as error:
        raise WireError(f"counts: not base64 ({error})") from None
    kind = _DTYPES[dtype]
    if len(raw) != layers * experts * kind.itemsize:
        raise WireError(
            f"counts: {len(raw)} bytes, but {layers} layers x {experts} experts of {dtype} need "
            f"{layers * experts * kind.itemsize}"
        )
    counts = np.frombuffer(raw, dtype=kind).reshape(layers, experts)
    return ExpertCounts(counts=counts, top_k=top_k, tokens=tokens, exact=fields.get("exact") is True)


def encode_counts(value: ExpertCounts) -> dict[str, Any]:
    """Return the JSON object for expert counts; the inverse of :func:`decode_counts`."""
    dtype = value.counts.dtype.name
    if dtype not in _DTYPES:
        raise WireError(f"dtype: expected one of {', '.join(_DTYPES)}, got {dtype!r}")
    layers, experts = value.shape
    raw = np.ascontiguousarray(value.counts, dtype=value.counts.dtype.newbyteorder("<")).tobytes()
    return {
        "v": COUNTS_VERSION,
        "layers": layers,
        "experts": experts,
        "topk": value.top_k,
        "tokens": value.tokens,
        "exact": value.exact,
        "dtype": dtype,
        "counts": b64encode(raw).decode("ascii"),
    }


def pull_deadline(params: Mapping[str, Any]) -> float | None:
    """Return until when KV blocks may be pulled, see :data:`eldr.contract.PULL_BEFORE_KEY`.

    Returns
    -------
    float or None
        Unix time, seconds; None without a deadline.

    Raises
    ------
    WireError
        If the value is no number, or none that can be a time.
    """
    value = params.get(PULL_BEFORE_KEY)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _FAR:
        raise WireError(f"{PULL_BEFORE_KEY}: expected Unix time in seconds, got {value!r}")
    return float(value)
