"""Which end of a failed pull is left alone."""

import pytest

from eldr_router.engines.health import Health, pull_failed, pulled


@pytest.fixture
def engines():
    return {name: Health() for name in ("p0", "p1", "d0", "d1", "d2")}


def ejected(engines, events, now=0.0):
    """Run pulls, "d0p0" a good one and "!d0p0" a failed one, and return who is ejected in the end."""
    for event in events.split():
        pair = engines[event[-4:-2]], engines[event[-2:]]
        if event.startswith("!"):
            pull_failed(*pair, now)
        else:
            pulled(*pair)
    return {name for name, health in engines.items() if not health.is_good(now)}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("!d0p0", set()),
        ("!d0p0 !d1p0", {"p0"}),
        (
            "!d0p0 d0p1 !d1p0 d1p1 !d2p0",
            {"p0"},
        ),  # good pulls elsewhere do not speak for a broken prefill engine
        ("!d0p0 !d0p1", {"d0"}),
        ("!d0p0 d1p0 !d0p0 d1p0", set()),
        ("!d0p0 d1p0 !d0p0 d1p0 !d0p0 d1p0", {"d0"}),  # the only prefill engine is well with others
        ("!d0p0 d0p0 !d0p0 d0p0 !d0p0 d0p0 !d0p0", set()),
        ("!d0p0 !d0p0 !d0p0", {"d0"}),
    ],
)
def test_the_end_that_fails_with_several_others_is_ejected(engines, events, expected):
    assert ejected(engines, events) == expected


def test_a_prefill_engine_whose_pulls_fail_is_not_well_because_it_prefills(engines):
    assert ejected(engines, "!d0p0 !d1p0") == {"p0"}
    engines["p0"].answered()
    assert ejected(engines, "") == {"p0"}
    assert ejected(engines, "d0p0") == set()


def test_its_ejection_doubles_when_the_next_pull_fails(engines):
    assert ejected(engines, "!d0p0 !d1p0") == {"p0"}
    assert engines["p0"].is_good(1.0)
    assert ejected(engines, "!d2p0", now=1.0) == {"p0"}
    assert not engines["p0"].is_good(2.9)
    assert engines["p0"].is_good(3.0)


def test_a_good_answer_ends_the_doubling(engines):
    p0 = engines["p0"]
    for now in (0.0, 1.0):
        p0.eject(now)
    assert not p0.is_good(2.9)
    p0.answered()
    p0.eject(3.0)
    assert p0.is_good(4.0)
