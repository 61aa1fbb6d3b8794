"""The course of windows, what is read of metrics, and the mark on a deployment."""

from datetime import UTC, datetime, timedelta

import pytest

from eldr.compare.course import ADOPT_SECONDS, Course, Do, Phase, Window, step, windows
from eldr.compare.figures import (
    Figures,
    FiguresError,
    Reading,
    Totals,
    of_engine,
    of_router,
    typical_seconds,
    window,
)
from eldr.status import hold

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)


def test_pairs_hold_both_policies_in_an_order_that_the_seed_draws():
    made = windows(200, 1)
    assert all({a.is_own, b.is_own} == {True, False} for a, b in zip(made[::2], made[1::2], strict=True))
    assert [one.pair for one in made[:4]] == [0, 0, 1, 1]
    first = [one.is_own for one in made[::2]]
    assert all(a != b for a, b in zip(first[::2], first[1::2], strict=True)), "either as often"
    assert 30 < sum(first[::2]) < 70, "and by chance which is the first"
    assert len(windows(3, 1)) == 6
    assert windows(200, 1) == made
    assert windows(200, 2) != made


COURSE = Course((Window(0, True), Window(0, False)), 300.0, 30.0)


@pytest.mark.parametrize(
    ("phase", "after", "is_set", "is_adopted", "wanted"),
    [
        (Phase.SWITCH, 0, False, False, (Phase.SWITCH, Do.SWITCH)),
        (Phase.SWITCH, 0, True, False, (Phase.ADOPT, Do.WAIT)),
        (Phase.SWITCH, 0, True, True, (Phase.SETTLE, Do.WAIT)),
        (Phase.ADOPT, ADOPT_SECONDS, True, False, (Phase.ADOPT, Do.WAIT)),
        (Phase.ADOPT, ADOPT_SECONDS + 1, True, False, (Phase.ADOPT, Do.GIVE_UP)),
        (Phase.ADOPT, ADOPT_SECONDS + 1, True, True, (Phase.SETTLE, Do.WAIT)),
        (Phase.SETTLE, 29.9, True, True, (Phase.SETTLE, Do.WAIT)),
        (Phase.SETTLE, 30, True, True, (Phase.MEASURE, Do.OPEN)),
        (Phase.MEASURE, 269.9, True, True, (Phase.MEASURE, Do.WAIT)),
        (Phase.MEASURE, 270, True, True, (Phase.SWITCH, Do.CLOSE)),
    ],
)
def test_the_course_of_a_window(phase, after, is_set, is_adopted, wanted):
    before = Course(*(COURSE.windows, 300.0, 30.0, 0, phase, 1000.0))
    found, do = step(before, 1000.0 + after, is_set=is_set, is_adopted=is_adopted)
    assert (found.phase, do) == wanted
    assert found.at == (1 if do is Do.CLOSE else 0)


def test_the_course_ends_after_its_last_window():
    assert step(Course(COURSE.windows, 300.0, 30.0, 2), 0.0, is_set=True, is_adopted=True)[1] is Do.END


ENGINE = """\
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0"}} 1000.0
vllm:generation_tokens_total{{engine="1"}} 500.0
# TYPE {gaps} histogram
{gaps}_bucket{{engine="0",le="+Inf"}} 10.0
{gaps}_count{{engine="0"}} 10.0
{gaps}_sum{{engine="0"}} 60.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} 15.0
vllm:time_to_first_token_seconds_count 15.0
vllm:time_to_first_token_seconds_sum 3.0
"""
ROUTER = """\
# TYPE eldr_router_first_byte_seconds histogram
eldr_router_first_byte_seconds_bucket{le="+Inf"} 15.0
eldr_router_first_byte_seconds_count 15.0
eldr_router_first_byte_seconds_sum 7.5
# TYPE eldr_router_request_seconds histogram
eldr_router_request_seconds_bucket{le="5.0"} 80.0
eldr_router_request_seconds_bucket{le="10.0"} 95.0
eldr_router_request_seconds_bucket{le="+Inf"} 100.0
eldr_router_request_seconds_count 100.0
eldr_router_request_seconds_sum 400.0
"""


@pytest.mark.parametrize("gaps", ["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"])
def test_metrics_are_read_over_all_ranks_of_an_engine(gaps):
    assert of_engine(ENGINE.format(gaps=gaps)) == Totals(1500.0, 60.0, 15.0)
    assert of_router(ROUTER) == Totals(ttft_seconds=7.5, ttfts=15.0)


def test_pages_without_figures_are_said():
    for page in ("", "<html>", "a{"):
        with pytest.raises(FiguresError):
            of_engine(page)
        with pytest.raises(FiguresError):
            of_router(page)


def test_requests_last_typically_as_long_as_nine_tenths_of_them():
    assert typical_seconds([ROUTER]) == 10.0
    assert typical_seconds([ROUTER, ROUTER.replace('"10.0"} 95', '"10.0"} 81')]) == 600.0
    assert typical_seconds([""]) is None


OPENED = Reading(100.0, {"e": Totals(1000, 10, 10), "r": Totals(0, 0, 0, 5, 10)}, 1)
CLOSED = Reading(200.0, {"e": Totals(3000, 109.5, 30), "r": Totals(0, 0, 0, 15, 30)}, 1)


def test_a_window_is_what_grew_in_it():
    assert window(OPENED, CLOSED) == Figures(tpot=99.5 / 1980, ttft=0.5, throughput=20.0, requests=20)


@pytest.mark.parametrize(
    ("closed", "why"),
    [
        (Reading(200.0, CLOSED.pods, 2), "the centroid set changed"),
        (Reading(200.0, {"e": CLOSED.pods["e"]}, 1), "engines or routers came or went"),
        (Reading(200.0, {**CLOSED.pods, "e": Totals(5, 1, 1)}, 1), "an engine or router restarted"),
        (Reading(200.0, OPENED.pods, 1), "there was no traffic"),
    ],
)
def test_windows_that_say_nothing(closed, why):
    assert window(OPENED, closed) == why


def deployment(**annotations):
    spec = {"router": {"policy": "ELDR"}, "refit": {"suspend": "Enabled"}}
    return {"metadata": {"resourceVersion": "7", "annotations": annotations}, "spec": spec}


def test_a_mark_is_written_with_what_it_says_and_read_again():
    mark = hold.new(deployment(), "me", NOW, "JSQ")
    patch = hold.patch(deployment(), mark)
    assert patch["spec"] == {
        "router": {"policy": "JSQ"},
        "refit": {"suspend": "Enabled", "drift": {"mode": "Observe"}},
    }
    assert patch["metadata"]["resourceVersion"] == "7"
    assert hold.of(deployment(**patch["metadata"]["annotations"])) == mark
    assert mark.was == {"policy": "ELDR", "suspend": "Enabled", "mode": "Enabled"}
    assert mark.is_alive(NOW)
    assert not mark.is_alive(NOW + hold.LIFETIME)
    assert mark.but(NOW + timedelta(seconds=30), "ELDR").now["policy"] == "ELDR"


@pytest.mark.parametrize("value", ["", "{", "[]", '{"id": "x"}', "null"])
def test_a_mark_that_nobody_can_read_is_none(value):
    assert hold.of(deployment(**{hold.ANNOTATION: value})) is None
    mark = hold.new(deployment(), "me", NOW, "JSQ")
    assert "somebody removed" in hold.changed(deployment(**{hold.ANNOTATION: value}), mark)
