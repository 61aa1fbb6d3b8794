import base64
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from eldr.contract import PULL_BEFORE_KEY
from eldr.wire import ExpertCounts, WireError, decode_counts, encode_counts, pull_deadline


def value(**fields):
    counts = np.arange(6, dtype=np.uint16).reshape(2, 3)
    return encode_counts(ExpertCounts(counts=counts, top_k=2, tokens=7, exact=True)) | fields


@given(arrays(st.sampled_from([np.uint16, np.uint32]), st.tuples(st.integers(1, 5), st.integers(1, 9))))
def test_round_trip(counts):
    got = decode_counts(encode_counts(ExpertCounts(counts=counts, top_k=1, tokens=3, exact=False)))
    np.testing.assert_array_equal(got.counts, counts)
    assert (got.top_k, got.tokens, got.exact) == (1, 3, False)


@given(st.text(alphabet="ABab01+/==\n -_é", max_size=12))
def test_base64_is_read_as_the_standard_library_reads_it_or_refused(text):
    try:
        got = decode_counts(value(layers=1, experts=max(1, len(text) * 3 // 8), counts=text)).counts.tobytes()
    except WireError:
        return
    assert got == base64.b64decode(text, validate=True)


@pytest.mark.process
def test_engines_encode_without_the_dependencies():
    """The plug-in is copied into engine images alone."""
    code = (
        "import sys; sys.modules['pybase64'] = None\n"
        "import numpy as np; from eldr.wire import ExpertCounts, decode_counts, encode_counts\n"
        "fields = encode_counts(ExpertCounts(np.array([[1, 2]], np.uint16), top_k=1, tokens=3, exact=True))\n"
        "assert fields['counts'] == 'AQACAA==', fields\n"
        "assert decode_counts(fields).counts.tolist() == [[1, 2]]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"v": 2}, "v: expected 1, got 2"),
        ({"layers": 0}, "layers: expected an integer >= 1"),
        ({"layers": True}, "layers"),
        ({"experts": "3"}, "experts"),
        ({"layers": 1 << 20, "experts": 1 << 20}, "exceeds"),
        ({"topk": None}, "topk"),
        ({"tokens": -1}, "tokens"),
        ({"dtype": "float32"}, "dtype"),
        ({"dtype": ["uint16"]}, "dtype"),
        ({"dtype": "uint32"}, "12 bytes, but 2 layers x 3 experts of uint32 need 24"),
        ({"counts": None}, "counts: expected base64 text"),
        ({"counts": "***"}, "counts: not base64"),
        ({"counts": "AAAA"}, "counts: 3 bytes"),
    ],
)
def test_broken_objects_are_refused_with_the_field(fields, reason):
    with pytest.raises(WireError, match=reason):
        decode_counts(value(**fields))


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_json_is_refused_or_read(thing):
    with pytest.raises(WireError):
        decode_counts(thing)


def test_exact_must_be_true_itself():
    assert not decode_counts(value(exact=1)).exact


@pytest.mark.parametrize(
    ("params", "deadline"),
    [({}, None), ({PULL_BEFORE_KEY: None}, None), ({PULL_BEFORE_KEY: 7}, 7.0), ({PULL_BEFORE_KEY: 1.5}, 1.5)],
)
def test_deadlines_of_pulls_are_optional_numbers(params, deadline):
    assert pull_deadline(params) == deadline


@given(
    st.booleans()
    | st.text()
    | st.sampled_from([math.inf, -math.inf, math.nan, 10**400])
    | st.lists(st.none())
)
def test_deadlines_that_are_no_time_are_refused(thing):
    with pytest.raises(WireError, match="eldr_pull_before: expected Unix time in seconds"):
        pull_deadline({PULL_BEFORE_KEY: thing})
