import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr import centroids
from eldr.centroids import CentroidsError, CentroidSet, check_fits, dump, join, load, split
from eldr.core.signature import signatures


def make(k: int = 3, kept: tuple[int, ...] = (0, 2), experts: int = 8, **fields) -> CentroidSet:
    rng = np.random.default_rng(0)
    centers = rng.random((k, len(kept) * experts), dtype=np.float32)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    values = {
        "model": "qwen3",
        "n_layers": 4,
        "n_experts": experts,
        "top_k": 2,
        "kept": kept,
        "weighting": "counts",
        "weights": np.ones((len(kept), experts), np.float32),
        "centers": centers,
        "samples": 100,
        "created": 1.5,
        "rho": 0.8,
    }
    return CentroidSet(**values | fields)


def edit(data: bytes, **fields) -> bytes:
    end = data.index(b"\n", len(centroids.MAGIC))
    header = json.loads(data[len(centroids.MAGIC) : end]) | fields
    body = centroids.MAGIC + json.dumps(header).encode() + data[end:-32]
    return body + hashlib.sha256(body).digest()


def with_header(header: bytes) -> bytes:
    data = dump(make())
    body = centroids.MAGIC + header + data[data.index(b"\n", len(centroids.MAGIC)) : -32]
    return body + hashlib.sha256(body).digest()


def without(data: bytes, name: str) -> bytes:
    header = json.loads(data[len(centroids.MAGIC) : data.index(b"\n", len(centroids.MAGIC))])
    del header[name]
    return with_header(json.dumps(header).encode())


def test_round_trip():
    a = make()
    b = load(dump(a))
    for name in (
        "model",
        "n_layers",
        "n_experts",
        "top_k",
        "kept",
        "weighting",
        "samples",
        "created",
        "rho",
        "k",
    ):
        assert getattr(a, name) == getattr(b, name)
    np.testing.assert_allclose(a.centers, b.centers, atol=1e-3)
    np.testing.assert_array_equal(a.weights, b.weights)
    assert dump(b) == dump(load(dump(b)))


@pytest.mark.parametrize("kept", [(0, 2), (1, 2, 3), (0, 1, 2, 3), (3,)])
@pytest.mark.parametrize("weighting", ["counts", "counts_idf"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_similarities_are_cosines_of_the_signature(kept, weighting, dtype):
    rng = np.random.default_rng(1)
    weights = rng.random((len(kept), 8), dtype=np.float32)
    if weighting == "counts":
        weights[:] = 1
    a = make(kept=kept, weights=weights, weighting=weighting)
    counts = rng.integers(0, 50, (4, 8)).astype(dtype)
    expected = signatures(counts[None], a.full_weights(), a.layer_mask) @ a.centers.T
    np.testing.assert_allclose(a.similarities(counts), expected[0], atol=1e-6)


def test_similarities_without_a_preference_or_of_another_geometry():
    a = make()
    assert (a.similarities(np.zeros((4, 8), np.uint16)) == 0).all()
    with pytest.raises(CentroidsError, match="expected 4 layers x 8 experts"):
        a.similarities(np.zeros((4, 9), np.uint16))


@given(at=st.integers(min_value=0), flip=st.integers(1, 255))
def test_any_damaged_byte_is_refused(at, flip):
    data = bytearray(dump(make()))
    data[at % len(data)] ^= flip
    with pytest.raises(CentroidsError):
        load(bytes(data))


@given(length=st.integers(min_value=0))
def test_any_truncation_is_refused(length):
    data = dump(make())
    with pytest.raises(CentroidsError):
        load(data[: length % len(data)])


@given(data=st.binary(max_size=200))
def test_foreign_bytes_are_refused(data):
    with pytest.raises(CentroidsError):
        load(data)
    with pytest.raises(CentroidsError):
        load(centroids.MAGIC + data)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 2}, "format version 2, this program reads 1; upgrade"),
        ({"version": "x"}, "format version 'x'"),
        ({"k": 0}, "header field k"),
        ({"k": 4}, "truncated"),
        ({"k": 2}, "damaged"),
        ({"experts": True}, "header field experts"),
        ({"kept": []}, "header field kept"),
        ({"kept": [2, 0]}, "kept: expected ascending"),
        ({"kept": [0, 9]}, "kept: expected ascending"),
        ({"model": ""}, "header field model"),
        ({"weighting": "tfidf"}, "header field weighting"),
        ({"rho": "high"}, "header field rho"),
        ({"created": None}, "header field created"),
        ({"created": 10**400}, "header field created"),
        ({"rho": -(10**400)}, "header field rho"),
        ({"version": True}, "format version True"),
        ({"version": [[]]}, "format version"),
        ({"kept": [0, 10**40]}, "kept: expected ascending"),
        ({"weighting": ["counts"]}, "header field weighting"),
    ],
)
def test_inconsistent_headers_are_refused_with_the_field(fields, reason):
    with pytest.raises(CentroidsError, match=reason):
        load(edit(dump(make()), **fields))


@pytest.mark.parametrize(
    "name", ["layers", "experts", "top_k", "k", "kept", "weighting", "samples", "created", "model", "version"]
)
def test_a_header_without_a_field_is_refused(name):
    with pytest.raises(CentroidsError, match=name):
        load(without(dump(make()), name))


def test_a_header_without_rho_knows_none():
    assert load(without(dump(make()), "rho")).rho is None


@pytest.mark.parametrize(
    "header",
    [b"[" * 200_000, b'{"a":' * 100_000, b"[]", b"{}", b"1" * 5000, b"\xff", b"null", b'{"kept": [1e999]}'],
)
def test_malformed_headers_are_refused(header):
    with pytest.raises(CentroidsError):
        load(with_header(header))


def test_nothing_of_a_damaged_file_is_parsed():
    data = bytearray(with_header(b"[" * 200_000))
    data[-1] ^= 1
    with pytest.raises(CentroidsError, match="digest"):
        load(bytes(data))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"centers": np.full((3, 16), np.nan, np.float32)}, "centers: holds NaN"),
        ({"centers": np.ones((3, 16), np.float32)}, "unit length"),
        ({"centers": np.ones((3, 15), np.float32)}, r"centers: expected \(k, 16\)"),
        ({"weights": np.ones((3, 8), np.float32)}, "weights: expected"),
        ({"weights": -np.ones((2, 8), np.float32)}, "negative weight"),
    ],
)
def test_impossible_sets_cannot_be_made(fields, reason):
    with pytest.raises(CentroidsError, match=reason):
        make(**fields)


def test_shards_split_and_join():
    data = dump(make())
    shards = split(data, 100)
    assert all(len(s) <= 100 for s in shards)
    digests = [hashlib.sha256(s).hexdigest() for s in shards]
    assert join(shards, digests) == data
    with pytest.raises(CentroidsError, match="shard 1 is damaged"):
        join([shards[0], b"x", *shards[2:]], digests)
    with pytest.raises(CentroidsError, match="shards, the routing table names"):
        join(shards[:-1], digests)


def test_foreign_model_and_wrong_k_are_refused():
    check_fits(make(), model="qwen3", k=3)
    with pytest.raises(CentroidsError, match="fitted for model 'qwen3', this deployment serves 'gpt-oss'"):
        check_fits(make(), model="gpt-oss", k=3)
    with pytest.raises(CentroidsError, match="holds 3 centroids, the routing table says 4"):
        check_fits(make(), model="qwen3", k=4)
