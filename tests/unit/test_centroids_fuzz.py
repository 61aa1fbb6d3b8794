"""Whatever bytes come, a centroid file is loaded as a set that can be used, or refused with a short reason."""

import hashlib
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr import centroids
from eldr.centroids import CentroidsError, CentroidSet, dump, load
from tests.unit.test_centroids import make

GOOD = dump(make())
END = GOOD.index(b"\n", len(centroids.MAGIC))
HEADER = json.loads(GOOD[len(centroids.MAGIC) : END])
BODY = GOOD[END + 1 : -32]
LONGEST = 500
"""Bytes of a reason: routers show it in their state, and fits in a message."""


def signed(header: bytes, body: bytes = BODY) -> bytes:
    data = centroids.MAGIC + header + b"\n" + body
    return data + hashlib.sha256(data).digest()


def taken(data: bytes) -> CentroidSet | None:
    """Return the set, None where it is refused; anything else than a short refusal fails the test."""
    loaded, reason = None, "none"
    try:
        loaded = load(data)
    except CentroidsError as error:
        reason = str(error)
    assert 0 < len(reason.encode()) <= LONGEST
    if loaded is None:
        return None
    counts = np.full((loaded.n_layers, loaded.n_experts), 60_000, dtype=np.uint16)
    assert np.isfinite(loaded.similarities(counts)).all()
    assert loaded.layer_mask.sum() == len(loaded.kept)
    loaded.model.encode()
    assert dump(load(dump(loaded))) == dump(loaded)
    return loaded


numbers = st.one_of(
    st.integers(), st.integers(-5, 70), st.sampled_from([2**31 - 1, 2**31, 2**63, 10**400, -(10**400)])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.floats(), st.text(st.characters(exclude_categories=[]))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def headers(draw: st.DrawFn) -> dict[str, object]:
    header = dict(HEADER)
    names = st.one_of(st.sampled_from(sorted(HEADER)), st.text(max_size=5))
    for name in draw(st.lists(names, max_size=3)):
        if draw(st.booleans()):
            header[name] = draw(values)
        else:
            header.pop(name, None)
    return header


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(header=headers())
def test_signed_headers_of_any_values(header):
    taken(signed(json.dumps(header).encode()))


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, END - len(centroids.MAGIC)), flip=st.integers(1, 255))
def test_signed_headers_with_a_flipped_byte(at, flip):
    header = bytearray(GOOD[len(centroids.MAGIC) : END + 1])
    header[at] ^= flip
    taken(signed(bytes(header)))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_signed_numbers_of_any_bits(data):
    body = bytearray(BODY)
    at = data.draw(st.integers(0, len(body) - 4)) & ~1
    bits = data.draw(
        st.one_of(
            st.binary(min_size=4, max_size=4),
            st.sampled_from([np.float32(value).tobytes() for value in (np.nan, np.inf, 3e38, -0.0, 1e-45)]),
        )
    )
    body[at : at + 4] = bits
    taken(signed(GOOD[len(centroids.MAGIC) : END], bytes(body)))


@pytest.mark.parametrize("depth", [5, 100, 900, 985, 990, 995, 1000, 5000, 100_000])
@pytest.mark.parametrize("name", [*HEADER, "other"])
def test_headers_nested_to_any_depth(name, depth):
    """The depth at which a parser gives up differs from the one at which a message cannot be written."""
    text = json.dumps(HEADER | {name: "@"}).replace('"@"', "[" * depth + "]" * depth)
    assert taken(signed(text.encode())) is None or name == "other"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"layers": 2**31 - 1}, "layers"),
        ({"experts": 2**31 - 1}, "truncated"),
        ({"layers": 2**20}, "layers x experts"),
        ({"k": 2**31 - 1}, "truncated"),
        ({"top_k": 9}, "top_k"),
        ({"model": "\ud800"}, "model"),
    ],
)
def test_impossible_sizes_are_refused_by_name_before_anything_of_the_size_is_made(fields, field):
    data = signed(json.dumps(HEADER | fields).encode())
    tracemalloc.start()
    try:
        with pytest.raises(CentroidsError, match=field):
            load(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_weights_that_no_signature_survives_are_refused():
    with pytest.raises(CentroidsError, match=r"weights: .* at most"):
        make(weights=np.full((2, 8), 3e38, np.float32))


def test_what_this_program_writes_is_taken():
    assert taken(GOOD).rho == 0.8
