"""What tells one manifest from another."""

from eldr_operator import meta
from tests.support.deep import nested


def test_fingerprints_differ_where_values_do_and_not_by_the_order_of_keys():
    assert meta.fingerprint({"a": 1, "b": [1, 2]}) == meta.fingerprint({"b": [1, 2], "a": 1})
    values = ({"a": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"a": [1, 2]}, {"a": [2, 1]}, {})
    assert len({meta.fingerprint(value) for value in values}) == len(values)


def test_a_value_of_any_depth_has_one():
    assert meta.fingerprint(nested(400)) == meta.fingerprint(nested(400)) != meta.fingerprint(nested(401))
