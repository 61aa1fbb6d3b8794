"""The fitted artifact: a versioned, digest-checked file of centroids, small enough for ConfigMap shards.

Layout: magic, one line of JSON (the header), the weights as float32, the centroids as float16, SHA-256 of all before.
Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from eldr.contract import SHARD_BYTES
from eldr.core.signature import Floats, similarities
from eldr.shown import shown

MAGIC = b"ELDR-CENTROIDS\n"
FORMAT = 1
_DIGEST = hashlib.sha256().digest_size
_MAX_HEADER = 1 << 20
_MAX_CELLS = 1 << 22  # layers x experts: many times what the largest models have
_MAX_WEIGHT = 1e3  # no logarithm of a number of requests comes near

Weighting = Literal["counts", "counts_idf"]


class CentroidsError(ValueError):
    """A centroid file or set that must not be used; the message gives the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class CentroidSet:
    """Centroids of one model, one per decode slot.

    Attributes
    ----------
    model : str
        Served name of the model whose experts these are.
    n_layers, n_experts, top_k : int
        Geometry of the model's mixture-of-experts layers.
    kept : tuple of int
        Layers that signatures are made of, ascending.
    weighting : {"counts", "counts_idf"}
        What ``weights`` are: all ones, or inverse document frequencies.
    weights : ndarray of float32, shape (n_kept, n_experts)
    centers : ndarray of float32, shape (k, n_kept * n_experts)
        Unit rows; row ``i`` belongs to decode slot ``i``.
    samples : int
        Requests that the set was fitted on.
    created : float
        Unix time of the fit, seconds.
    rho : float or None
        Spearman correlation of signature and decode-activation distances on the calibration requests.
    """

    model: str
    n_layers: int
    n_experts: int
    top_k: int
    kept: tuple[int, ...]
    weighting: Weighting
    weights: Floats
    centers: Floats
    samples: int
    created: float
    rho: float | None = None
    _flat: Floats | None = field(init=False, repr=False)
    _centers: Floats = field(init=False, repr=False)
    _kept: slice | npt.NDArray[np.intp] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kept = self.kept
        if not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= self.n_layers:
            raise CentroidsError(f"kept: expected ascending layers below {self.n_layers}, got {shown(kept)}")
        if self.n_layers * self.n_experts > _MAX_CELLS:
            raise CentroidsError(
                f"layers x experts: {self.n_layers} x {self.n_experts}, at most {_MAX_CELLS} are read"
            )
        if not self.top_k <= self.n_experts:
            raise CentroidsError(f"top_k: {self.top_k} of {self.n_experts} experts")
        if self.weights.shape != (len(kept), self.n_experts):
            raise CentroidsError(f"weights: expected {(len(kept), self.n_experts)}, got {self.weights.shape}")
        if self.centers.ndim != 2 or self.centers.shape[1] != self.weights.size or not len(self.centers):
            raise CentroidsError(f"centers: expected (k, {self.weights.size}), got {self.centers.shape}")
        for name, array in (("weights", self.weights), ("centers", self.centers)):
            if not np.isfinite(array).all():
                raise CentroidsError(f"{name}: holds NaN or infinity")
        if self.weights.min() < 0:
            raise CentroidsError(f"weights: negative weight {self.weights.min()}")
        if self.weights.max() > _MAX_WEIGHT:
            raise CentroidsError(f"weights: {self.weights.max():g}, expected at most {_MAX_WEIGHT:g}")
        norms = np.linalg.norm(self.centers, axis=1)
        if np.abs(norms - 1.0).max() > 1e-2:
            raise CentroidsError(
                f"centers: rows must have unit length, got {norms.min():.3f}..{norms.max():.3f}"
            )
        flat = np.ascontiguousarray(self.weights, dtype=np.float32).reshape(-1)
        together = kept[-1] - kept[0] == len(kept) - 1
        rows = slice(kept[0], kept[-1] + 1) if together else np.asarray(kept, dtype=np.intp)
        object.__setattr__(self, "_flat", None if (flat == 1.0).all() else flat)
        object.__setattr__(self, "_centers", np.ascontiguousarray(self.centers, dtype=np.float32))
        object.__setattr__(self, "_kept", rows)

    @property
    def k(self) -> int:
        """Number of centroids."""
        return len(self.centers)

    @property
    def layer_mask(self) -> npt.NDArray[np.bool_]:
        """Boolean mask of the kept layers, shape (n_layers,)."""
        mask = np.zeros(self.n_layers, dtype=np.bool_)
        mask[self._kept] = True
        return mask

    def full_weights(self) -> Floats:
        """Return the weights at full height, zero on dropped layers, shape (n_layers, n_experts)."""
        full = np.zeros((self.n_layers, self.n_experts), dtype=np.float32)
        full[self._kept] = self.weights
        return full

    def similarities(self, counts: npt.NDArray[np.integer[Any]]) -> Floats:
        """Score one request's prompt counts, shape (n_layers, n_experts), against every centroid.

        Returns
        -------
        ndarray of float32, shape (k,)
            Cosines; all zero for a request without a preference.

        Raises
        ------
        CentroidsError
            If the counts have another geometry than the model the set was fitted for.
        """
        if counts.shape != (self.n_layers, self.n_experts):
            raise CentroidsError(
                f"counts: expected {self.n_layers} layers x {self.n_experts} experts as {self.model!r} was fitted with, "
                f"got {counts.shape[0]} x {counts.shape[-1]}"
            )
        return similarities(counts, self._flat, self._kept, self._centers)


def digest(data: bytes) -> str:
    """Return ``sha256:<hex>`` of a complete centroid file."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def dump(centroids: CentroidSet) -> bytes:
    """Serialise a set; centroids are stored as float16."""
    header = {
        "version": FORMAT,
        "model": centroids.model,
        "layers": centroids.n_layers,
        "experts": centroids.n_experts,
        "top_k": centroids.top_k,
        "k": centroids.k,
        "kept": list(centroids.kept),
        "weighting": centroids.weighting,
        "samples": centroids.samples,
        "created": centroids.created,
        "rho": centroids.rho,
    }
    body = (
        MAGIC
        + json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
        + b"\n"
        + centroids.weights.astype("<f4").tobytes()
        + centroids.centers.astype("<f2").tobytes()
    )
    return body + hashlib.sha256(body).digest()


def load(data: bytes) -> CentroidSet:
    """Read a centroid file.

    Raises
    ------
    CentroidsError
        If the file is foreign, of a newer format, truncated, damaged or inconsistent; the message names which.
    """
    if not data.startswith(MAGIC):
        raise CentroidsError("not a centroid file: the first bytes are foreign")
    # First of all: nothing that a disk or a network has changed reaches a parser.
    if len(data) < len(MAGIC) + _DIGEST or hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise CentroidsError("truncated or damaged: the digest does not match the contents")
    end = data.find(b"\n", len(MAGIC), len(MAGIC) + _MAX_HEADER)
    if end < 0:
        raise CentroidsError("damaged header: no end")
    header = _parsed(data[len(MAGIC) : end])
    fields = _checked(header)
    cells = len(fields["kept"]) * fields["experts"]
    want = end + 1 + cells * 4 + fields["k"] * cells * 2 + _DIGEST
    if len(data) != want:
        raise CentroidsError(
            f"{'truncated' if len(data) < want else 'damaged'}: {len(data)} bytes, expected {want}"
        )
    weights = np.frombuffer(data, "<f4", cells, end + 1).astype(np.float32)
    centers = np.frombuffer(data, "<f2", fields["k"] * cells, end + 1 + cells * 4).astype(np.float32)
    return CentroidSet(
        model=fields["model"],
        n_layers=fields["layers"],
        n_experts=fields["experts"],
        top_k=fields["top_k"],
        kept=tuple(fields["kept"]),
        weighting=fields["weighting"],
        weights=weights.reshape(len(fields["kept"]), fields["experts"]),
        centers=centers.reshape(fields["k"], cells),
        samples=fields["samples"],
        created=fields["created"],
        rho=fields.get("rho"),
    )


def _parsed(text: bytes) -> dict[str, Any]:
    """Return a header of this version."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise CentroidsError("damaged header: not JSON") from None
    if not isinstance(header, dict):
        raise CentroidsError("damaged header: not an object")
    version = header.get("version")
    if type(version) is not int or version != FORMAT:
        newer = type(version) is int and version > FORMAT
        raise CentroidsError(
            f"format version {shown(version)}, this program reads {FORMAT}"
            + ("; upgrade the router before the fit" if newer else "")
        )
    return header


def _checked(header: dict[str, Any]) -> dict[str, Any]:
    """Return a header all of whose fields are of their kinds."""
    for name in ("layers", "experts", "top_k", "k", "samples"):
        value = header.get(name)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise _wrong(header, name, "a positive integer")
    model = header.get("model")
    # a lone half of a surrogate pair is JSON, and no text that could be written anywhere
    if (
        not isinstance(model, str)
        or not model
        or any("\ud800" <= character <= "\udfff" for character in model)
    ):
        raise _wrong(header, "model", "a name")
    kept = header.get("kept")
    if not isinstance(kept, list) or not kept or not all(type(layer) is int for layer in kept):
        raise _wrong(header, "kept", "a list of layers")
    if header.get("weighting") not in ("counts", "counts_idf"):
        raise _wrong(header, "weighting", "counts or counts_idf")
    for name in ("created", "rho"):
        value = header.get(name)
        if name == "rho" and value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < math.inf:
            raise _wrong(header, name, "a number")
        try:
            header[name] = float(value)
        except OverflowError:
            raise CentroidsError(f"header field {name}: no float holds it") from None
    return header


def _wrong(header: dict[str, Any], name: str, expected: str) -> CentroidsError:
    """Return the error for a field; values are cut, as messages are shown in places that hold one line."""
    got = f"got {shown(header[name])}" if name in header else "it is missing"
    return CentroidsError(f"header field {name}: expected {expected}, {got}")


def check_fits(centroids: CentroidSet, *, model: str, k: int) -> None:
    """Refuse a set that was made for another model or declares another K than its pointer; CentroidsError names what differs."""
    if centroids.model != model:
        raise CentroidsError(f"fitted for model {shown(centroids.model)}, this deployment serves {model!r}")
    if centroids.k != k:
        raise CentroidsError(f"holds {centroids.k} centroids, the routing table says {k}")


def split(data: bytes, size: int = SHARD_BYTES) -> list[bytes]:
    """Cut a centroid file into shards of at most ``size`` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def join(shards: Sequence[bytes], sha256: Sequence[str]) -> bytes:
    """Join shards after checking the SHA-256 (hex) of each; CentroidsError names the shard that is missing or damaged."""
    if len(shards) != len(sha256):
        raise CentroidsError(f"{len(shards)} shards, the routing table names {len(sha256)}")
    for index, (shard, want) in enumerate(zip(shards, sha256, strict=True)):
        got = hashlib.sha256(shard).hexdigest()
        if got != want:
            raise CentroidsError(f"shard {index} is damaged: sha256 {got[:12]}..., expected {want[:12]}...")
    return b"".join(shards)
