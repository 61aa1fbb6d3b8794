"""Windows of requests: what routers counted since their start, cut into what is recent."""

from datetime import timedelta

import pytest

from eldr.contract import SIMILARITY_BINS
from eldr_operator.drift.counts import (
    Counts,
    Saving,
    Traffic,
    read_baseline,
    read_saving,
    read_traffic,
)
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.windows import FORGET, REMEMBERED, advance
from tests.unit.operator.builders import NOW


def counts(n, clusters=2):
    similarity = [0] * SIMILARITY_BINS
    similarity[90] = n
    return Counts(tuple(similarity), (n, *[0] * (clusters - 1)), n)


def traffic(router, n, epoch=1, digest="a", clusters=2):
    return Traffic(router, epoch, digest, counts(n, clusters))


def look(*steps, k=2, seconds=10):
    """Look every ten seconds at what each router has counted; return the windows.

    A step may name the set in use before its routers, and a router its epoch, set and number of clusters after its count.
    """
    spec = DriftSpec(window_requests=100, window_seconds=seconds)
    gathering, found = None, []
    for index, step in enumerate(steps):
        active, routers = step if isinstance(step, tuple) else ("a", step)
        views = [
            traffic(name, *(told if isinstance(told, tuple) else (told,))) for name, told in routers.items()
        ]
        before = gathering and gathering.window
        at = NOW + timedelta(seconds=10 * index)
        gathering = advance(gathering, active, k, views, at, spec=spec)
        if gathering.window and gathering.window != before:
            found.append(gathering.window)
    return found


def numbers(windows):
    return [window.latest.counts.requests for window in windows]


def test_requests_of_all_routers_make_one_window():
    (found,) = look({"r": 1000, "s": 50}, {"r": 1060, "s": 80}, {"r": 1070, "s": 90})
    latest = found.latest
    assert (latest.since, latest.until) == (NOW, NOW + timedelta(seconds=20))
    assert latest.counts.requests == latest.counts.similarity[90] == latest.counts.clusters[0] == 110


def test_a_window_takes_its_time_and_a_full_one_begins_anew():
    assert numbers(look(*({"r": 200 * index} for index in range(7)), seconds=30)) == [600, 600]


def test_a_router_that_was_away_for_long_begins_anew():
    away = int(FORGET.total_seconds() / 10) + 1
    assert numbers(look({"r": 0}, *[{}] * away, {"r": 900}, {"r": 1000})) == [100]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # what was counted before a router was first seen
        ([{"r": 0}, {"r": 90, "s": 5000}], []),
        ([{"r": 0}, {"r": 90, "s": 5000}, {"s": 5010}], [100]),
        # one that restarts counts from its own start
        ([{"old": 500}, {"new": 5}, {"new": 106}], [101]),
        # one that is lost keeps what it said, and nothing is counted twice when it returns
        ([{"r": 0}, {"r": 60}, {}, {"r": 90}, {"r": 130}], [130]),
        # the same set in another epoch counts from that epoch
        ([{"r": 700}, {"r": (120, 3)}], [120]),
        # numbers that shrink, and sets that disagree
        ([{"r": 500}, {"r": 400}], []),
        ([{"r": 0, "s": (0, 1, "a", 3)}, {"r": 60, "s": (200, 1, "a", 3)}, {"r": 100}], [100]),
        # the same look twice
        ([{"r": 0}, *[{"r": 99}] * 20], []),
    ],
)
def test_what_counts(steps, expected):
    assert numbers(look(*steps)) == expected


def test_a_set_of_another_number_of_clusters_begins_anew():
    assert numbers(look({"r": 0}, {"r": (300, 1, "a", 3)}, {"r": (410, 1, "a", 3)}, k=3)) == [110]


def test_routers_with_another_set_are_left_out_until_they_switch():
    (found,) = look(
        {"r": 700, "s": 300},
        ("b", {"r": (60, 2, "b"), "s": 400}),
        ("b", {"r": (70, 2, "b"), "s": (40, 2, "b")}),
    )
    assert (found.digest, found.latest.counts.requests) == ("b", 110)


def test_windows_together_and_those_before_them_share_none():
    found = look(*({"r": 100 * index + index * index} for index in range(8)))
    assert [window.together(2) is None for window in found] == [True, *[False] * 6]
    assert [window.earlier(2) is None for window in found] == [*[True] * 4, *[False] * 3]
    together, earlier = found[-1].together(2), found[-1].earlier(2)
    assert together.counts.requests == sum(numbers(found[-2:]))
    assert earlier.counts.requests == sum(numbers(found[-5:-3]))
    assert (together.since, earlier.until) == (NOW + timedelta(seconds=50), NOW + timedelta(seconds=40))
    # the first ones of a regime are told from the last ones
    since = NOW + timedelta(seconds=15)
    assert found[-1].first_since(since, 2).counts.requests == sum(numbers(found[2:4]))
    assert [window.first_since(since, 2) is None for window in found] == [*[True] * 5, False, False]


def test_windows_of_the_set_before_are_forgotten():
    switched = (("b", {"r": (100 * index, 2, "b")}) for index in range(1, 4))
    found = look(*({"r": 100 * index} for index in range(3)), *switched)
    assert [(window.digest, len(window.spans)) for window in found] == [
        *(("a", 1), ("a", 2)),
        *(("b", 1), ("b", 2)),
    ]


def test_windows_are_not_remembered_for_ever():
    found = look(*({"r": 100 * index} for index in range(REMEMBERED + 9)))
    assert len(found[-1].spans) == REMEMBERED


def wire(**changes):
    return {
        "epoch": 4,
        "digest": "sha256:a",
        "requests": 3,
        "similarity": [0] * 99 + [3],
        "clusters": [1, 2],
        "outside_band": 1,
    } | changes


def test_a_routers_counts_are_read():
    found = read_traffic("r", wire())
    assert (found.router, found.epoch, found.digest, found.counts.clusters) == ("r", 4, "sha256:a", (1, 2))


def test_savings_and_baselines_are_read():
    assert read_saving({"share": -0.1, "error": 0.02, "steps": 5}) == Saving(-0.1, 0.02, 5)
    assert read_saving({"share": 0.1, "error": 0.02, "steps": 5, "batch": 8}).batch == 8.0
    assert read_saving({"share": 0.1, "error": 0.02, "steps": 5, "drafts": 0.4}).drafts == 0.4
    found = read_baseline(wire(saving=0.1, saving_low=0.08, saving_high=0.12))
    assert (found.saving, found.counts.requests) == (0.1, 3)
    assert found.error == pytest.approx(0.04 / 3.29)
    assert read_baseline(wire(saving=0.1)).error == 0.0
