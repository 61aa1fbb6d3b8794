"""Windows of requests: what routers counted since their start, cut into what is recent."""

from datetime import timedelta
from types import SimpleNamespace

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
from eldr_operator.locality import drift_status
from tests.unit.operator.builders import NOW


def counts(n, clusters=2):
    similarity = [0] * SIMILARITY_BINS
    similarity[90] = n
    return Counts(tuple(similarity), (n, *[0] * (clusters - 1)), n)


def traffic(router, n, epoch=1, digest="a", clusters=2):
    return Traffic(router, epoch, digest, counts(n, clusters))


@pytest.fixture
def look():
    """Look at routers every ten seconds; returns the windows."""

    def run(*steps, digest="a", k=2, seconds=10, every=10):
        spec = DriftSpec(window_requests=100, window_seconds=seconds)
        gathering, found = None, []
        for index, step in enumerate(steps):
            active, views = step if isinstance(step, tuple) else (digest, step)
            at = NOW + timedelta(seconds=every * index)
            before = gathering and gathering.window
            gathering = advance(gathering, active, k, views, at, spec=spec)
            if gathering.window and gathering.window != before:
                found.append(gathering.window)
        return found

    return run


def numbers(windows):
    return [window.latest.counts.requests for window in windows]


def test_requests_of_all_routers_make_one_window(look):
    found = look(
        [traffic("r", 1000), traffic("s", 50)],
        [traffic("r", 1060), traffic("s", 80)],
        [traffic("r", 1070), traffic("s", 90)],
    )
    assert numbers(found) == [110]
    assert (found[0].latest.since, found[0].latest.until) == (NOW, NOW + timedelta(seconds=20))
    assert found[0].latest.counts.similarity[90] == found[0].latest.counts.clusters[0] == 110


def test_a_window_takes_its_time_and_a_full_one_begins_anew(look):
    steps = [[traffic("r", 200 * index)] for index in range(7)]
    assert numbers(look(*steps, seconds=30)) == [600, 600]


def test_what_was_counted_before_a_router_was_first_seen_does_not_count(look):
    assert look([traffic("r", 0)], [traffic("r", 90), traffic("s", 5000)]) == []
    assert numbers(look([traffic("r", 0)], [traffic("r", 90), traffic("s", 5000)], [traffic("s", 5010)])) == [
        100
    ]


def test_a_restarted_router_counts_from_its_own_start(look):
    assert numbers(look([traffic("old", 500)], [traffic("new", 5)], [traffic("new", 106)])) == [101]


def test_a_lost_router_keeps_what_it_said_and_nothing_is_counted_twice_when_it_returns(look):
    lost = [traffic("r", 0)], [traffic("r", 60)], [], [traffic("r", 90)], [traffic("r", 130)]
    assert numbers(look(*lost)) == [130]


def test_a_router_that_was_away_for_long_begins_anew(look):
    away = int(FORGET.total_seconds() / 10) + 1
    steps = [[traffic("r", 0)], *[[]] * away, [traffic("r", 900)], [traffic("r", 1000)]]
    assert numbers(look(*steps)) == [100]


def test_routers_with_another_set_are_left_out_until_they_switch(look):
    found = look(
        [traffic("r", 700, 1, "a"), traffic("s", 300, 1, "a")],
        ("b", [traffic("r", 60, 2, "b"), traffic("s", 400, 1, "a")]),
        ("b", [traffic("r", 70, 2, "b"), traffic("s", 40, 2, "b")]),
    )
    assert [window.digest for window in found] == ["b"]
    assert numbers(found) == [110]


def test_the_same_set_in_another_epoch_counts_from_that_epoch(look):
    assert numbers(look([traffic("r", 700)], [traffic("r", 120, epoch=3)])) == [120]


def test_numbers_that_shrink_and_sets_that_disagree_count_for_nothing(look):
    assert look([traffic("r", 500)], [traffic("r", 400)]) == []
    mixed = look(
        [traffic("r", 0), traffic("s", 0, clusters=3)],
        [traffic("r", 60), traffic("s", 200, clusters=3)],
        [traffic("r", 100)],
    )
    assert numbers(mixed) == [100]
    grown = look([traffic("r", 0)], [traffic("r", 300, clusters=3)], [traffic("r", 410, clusters=3)], k=3)
    assert numbers(grown) == [110]


def test_the_same_look_twice_adds_nothing(look):
    assert look([traffic("r", 0)], *[[traffic("r", 99)]] * 20) == []


def test_windows_together_and_those_before_them_share_none(look):
    found = look(*[[traffic("r", 100 * index + index * index)] for index in range(8)])
    assert [window.together(2) is None for window in found] == [True, *[False] * 6]
    assert [window.earlier(2) is None for window in found] == [*[True] * 4, *[False] * 3]
    last = found[-1]
    assert last.together(2).counts.requests == sum(numbers(found[-2:]))
    assert last.earlier(2).counts.requests == sum(numbers(found[-5:-3]))
    assert (last.together(2).since, last.earlier(2).until) == (
        NOW + timedelta(seconds=50),
        NOW + timedelta(seconds=40),
    )


def test_the_first_windows_of_a_regime_are_told_from_the_last_ones(look):
    found = look(*[[traffic("r", 100 * index + index * index)] for index in range(8)])
    since = NOW + timedelta(seconds=15)
    assert found[-1].first_since(since, 2).counts.requests == sum(numbers(found[2:4]))
    assert [window.first_since(since, 2) is None for window in found] == [*[True] * 5, False, False]


def test_windows_of_the_set_before_are_forgotten(look):
    steps = [[traffic("r", 100 * index)] for index in range(3)]
    switched = [("b", [traffic("r", 100 * index, 2, "b")]) for index in range(1, 4)]
    found = look(*steps, *switched)
    assert [(window.digest, len(window.spans)) for window in found] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


def test_windows_are_not_remembered_for_ever(look):
    found = look(*[[traffic("r", 100 * index)] for index in range(REMEMBERED + 9)])
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


@pytest.mark.parametrize(
    "changes", [{"epoch": None}, {"digest": 5}, {"similarity": [3]}, {"clusters": [1, 1.5]}, {"requests": 4}]
)
def test_counts_that_do_not_fit_are_none(changes):
    assert read_traffic("r", wire(**changes)) is None


def test_savings_and_baselines_are_read():
    assert read_saving({"share": -0.1, "error": 0.02, "steps": 5}) == Saving(-0.1, 0.02, 5)
    assert read_saving({"share": 0.1, "error": 0.02, "steps": 5, "batch": 8}).batch == 8.0
    assert read_saving({"share": 0.1, "error": 0.02, "steps": 5, "drafts": 0.4}).drafts == 0.4
    found = read_baseline(wire(saving=0.1, saving_low=0.08, saving_high=0.12))
    assert (found.saving, found.counts.requests) == (0.1, 3)
    assert found.error == pytest.approx(0.04 / 3.29)
    assert read_baseline(wire(saving=0.1)).error == 0.0


def test_what_drafts_cost_is_in_the_status_and_small_changes_are_no_news():
    def shown(saving, before):
        return drift_status._saving(
            before, SimpleNamespace(look=SimpleNamespace(seen=SimpleNamespace(saving=saving)))
        )

    first = shown(Saving(0.1, 0.02, 5, drafts=0.31), {})
    assert first == {"savingPercent": "10.0", "savingErrorPercent": "2.0", "draftExpertsPercent": "31.0"}
    assert shown(Saving(0.103, 0.01, 5, drafts=0.312), first) == first
    assert shown(Saving(0.1, 0.02, 5, drafts=0.4), first)["draftExpertsPercent"] == "40.0"
    assert "draftExpertsPercent" not in shown(Saving(0.1, 0.02, 5), first)


@pytest.mark.parametrize(
    "value",
    [
        {"share": float("nan"), "error": 0.1, "steps": 1},
        {"share": 0.1, "error": -0.1, "steps": 1},
        {"share": 0.1, "error": 0.1, "steps": "many"},
        {"share": 0.1, "error": 0.1, "steps": 1, "batch": "large"},
        {"share": 0.1, "error": 0.1, "steps": 1, "drafts": -0.1},
        {},
    ],
)
def test_savings_that_do_not_fit_are_none(value):
    assert read_saving(value) is None
