"""Which engines may exchange KV, and where requests go while they are not all alike."""

import pytest

from eldr_router.engines.pairing import Group, Load, alike, lightest


@pytest.mark.parametrize(
    ("one", "other", "expected"), [("a", "a", True), ("a", "b", False), ("", "b", True), ("", "", True)]
)
def test_engines_without_a_key_are_like_any_other(one, other, expected):
    assert alike(one, other) is expected
    assert alike(other, one) is expected


def loads(**found):
    return [Load(key.strip("_"), in_flight) for key, counts in found.items() for in_flight in counts]


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (loads(a=[1], b=[1]), loads(a=[5, 9], b=[4]), Group("b", True)),
        (loads(a=[0], b=[3]), loads(a=[5, 9], b=[4]), Group("a", True)),
        (loads(a=[0]), loads(a=[5], b=[4]), Group("b", False)),
        (loads(a=[9]), loads(a=[5], b=[6]), Group("a", True)),
        (loads(a=[0]), loads(a=[4], b=[4]), Group("a", True)),
        (loads(b=[9, 0]), loads(a=[4], b=[5]), Group("a", False)),
        (loads(_=[2]), loads(a=[4], b=[3]), Group("b", True)),
        (loads(a=[0], b=[0]), loads(_=[1], b=[2]), Group("", True)),
        (loads(a=[0], b=[0]), loads(b=[2]), Group("b", True)),
        ([], loads(a=[2]), Group("a", False)),
        (loads(a=[2]), [], None),
    ],
)
def test_the_group_with_the_fewest_in_flight(prefill, decode, expected):
    for turn in range(4):
        assert lightest(prefill, decode, turn) == expected


def test_equals_take_turns():
    prefill, decode = loads(a=[0], b=[0]), loads(a=[3], b=[3])
    assert [lightest(prefill, decode, turn).key for turn in range(4)] == ["a", "b", "a", "b"]
