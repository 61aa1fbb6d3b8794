"""Reports between routers: experts of their requests. Pure.

Sums per decode engine, of those that changed.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import numpy as np
import orjson
from pybase64 import b64decode, b64encode

from eldr.contract import PATH_UNIONS
from eldr.core.profiles import Learned, Profiles
from eldr.core.signature import Floats
from eldr.core.union import Shape, Unions

_LEAST = -20.0  # a survival of e^-20 is none, and float16 holds smaller logarithms well
_FLOAT16 = np.dtype(np.float16).newbyteorder("<")

Rows = Mapping[str, tuple[int, Floats]]
"""By decode engine: sequences, and the sum of their log survivals, shape (cells,)."""
_LONGEST = 1.01  # of a mean of unit vectors, rounded


class UnionReport(NamedTuple):
    """A router's answer.

    Attributes
    ----------
    source : str
        Whose tables these are; another name means that they began anew.
    version : int
        What to ask from the next time.
    shape : Shape or None
        Of the rows; None while the router has none.
    rows : Rows
        Those that changed; one without sequences is over.
    profiles : mapping of str to Learned
        What it learned of decode engines, of those where that is news; none of a router that learns no prior.
    """

    source: str
    version: int
    shape: Shape | None
    rows: Rows
    profiles: Mapping[str, Learned] = MappingProxyType({})


def question(source: str, since: int) -> str:
    """Return the path that asks for changes since a version."""
    return f"{PATH_UNIONS}?of={source}&since={since}"


def read_question(query: str) -> tuple[str, int]:
    """Return whose tables are meant, and since when."""
    fields = parse_qs(query)
    source, since = fields.get("of", [""])[0], fields.get("since", ["0"])[0]
    return source, int(since) if since.isdecimal() and len(since) < 19 else 0


def write_answer(
    source: str, unions: Unions | None, since: int, profiles: Profiles | None = None
) -> dict[str, Any]:
    """Return the object of :data:`eldr.contract.PATH_UNIONS`."""
    answer: dict[str, Any] = {"v": 1, "of": source, "version": 0, "shape": None, "rows": {}}
    if unions is not None:
        answer["version"] = unions.version
        answer["shape"] = list(unions.shape)
        answer["rows"] = {engine: _pack(*row) for engine, row in unions.table(since).items()}
        if profiles is not None:
            learned = profiles.table(since).items()
            answer["profiles"] = {
                engine: {"count": count, "mean": _text(mean)} for engine, (count, mean) in learned
            }
    return answer


def read_answer(status: int, body: bytes) -> UnionReport:
    """Read another router's answer; ValueError if it is none."""
    if status != 200:
        raise ValueError(f"answers {status}")
    fields = orjson.loads(body)
    if not isinstance(fields, dict) or fields.get("v") != 1:
        raise ValueError("its answer is no unions object of version 1")
    try:
        given = fields["shape"]
        shape = None if given is None else _shape(*given)
        cells = 0 if shape is None else shape.cells
        rows = {str(engine): _unpack(row, cells) for engine, row in fields["rows"].items()}
        profiles = {str(engine): _learned(one, cells) for engine, one in fields.get("profiles", {}).items()}
        return UnionReport(str(fields["of"]), int(fields["version"]), shape, rows, profiles)
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ValueError(f"its unions lack or have a wrong {error}") from None


def _shape(n_layers: int, n_experts: int, top_k: int, layers: list[int]) -> Shape:
    return Shape(int(n_layers), int(n_experts), int(top_k), tuple(int(layer) for layer in layers))


def _pack(sequences: int, logs: Floats) -> dict[str, Any]:
    if not sequences:
        return {"sequences": 0}
    return {"sequences": sequences, "logs": _text(np.maximum(logs, _LEAST))}


def _text(cells: Floats) -> str:
    return b64encode(cells.astype(_FLOAT16).tobytes()).decode("ascii")


def _cells(text: str) -> Floats:
    return np.frombuffer(b64decode(text, validate=True), dtype=_FLOAT16).astype(np.float32)


def _learned(row: dict[str, Any], cells: int) -> Learned:
    count, mean = int(row["count"]), _cells(row["mean"])
    # a NaN, too, fails to be one of these
    if count < 1 or mean.shape != (cells,) or not (mean >= 0).all() or not 0 < mean.dot(mean) < _LONGEST:
        raise ValueError(f"its unions hold a mean of {count} signatures and {mean.size} cells that is none")
    return Learned(count, mean)


def _unpack(row: dict[str, Any], cells: int) -> tuple[int, Floats]:
    sequences = int(row["sequences"])
    if not sequences:
        return 0, np.zeros(0, dtype=np.float32)
    logs = _cells(row["logs"])
    # what is no logarithm of a probability would poison every cost
    if logs.shape != (cells,) or not (logs <= 0).all() or sequences < 0:
        raise ValueError(f"its unions hold a row of {sequences} sequences and {logs.size} cells that is none")
    return sequences, np.maximum(logs, _LEAST)
