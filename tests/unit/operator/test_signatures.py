"""The condition SignaturesReported: what routers counted lately, and nothing older."""

from dataclasses import replace
from datetime import timedelta

import pytest

from eldr_operator.conditions import SIGNATURES_REPORTED
from eldr_operator.locality.router_view import RouterPod, RouterView
from eldr_operator.locality.signatures import LEAST_ANSWERS, WINDOW, advance, warned
from eldr_operator.locality.signatures import judge as judge_answers
from tests.unit.operator.builders import NOW, POD, STATE, make_cr


def view(router="r0", **signatures):
    return RouterView(RouterPod("p", "127.0.0.1", None), router=router, signatures=signatures)


def judge(*steps):
    """Let the routers count for one window after the other."""
    window, found = None, None
    for index, views in enumerate(steps):
        window, answers = advance(window, views, NOW + index * WINDOW)
        found = answers if answers is not None else found
    return judge_answers(make_cr(), found)


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ({"exact": 100}, ("True", "Reported")),
        ({"exact": 96, "no_signature": 4}, ("True", "Reported")),
        ({"exact": 50, "no_signature": 50}, ("False", "Missing")),
        ({"no_signature": 10}, ("False", "Missing")),
        ({"exact": 80, "wire_error": 20}, ("False", "Unreadable")),
        ({"exact": 90, "inexact": 10}, ("False", "Inexact")),
        ({"no_signature": LEAST_ANSWERS - 1}, ("Unknown", "NoTraffic")),
        ({}, ("Unknown", "NoTraffic")),
    ],
)
def test_verdicts(counted, expected):
    found = judge([view(**dict.fromkeys(counted, 0))], [view(**counted)])
    assert (found.status, found.reason) == expected


def test_what_was_counted_before_does_not_count():
    old = view(no_signature=1000, exact=0)
    assert judge([old], [view(no_signature=1000, exact=20)]).status == "True"
    assert (
        judge([old], [view(no_signature=1000, exact=20)], [view(no_signature=1020, exact=20)]).status
        == "False"
    )


def test_a_restarted_router_counts_from_its_own_start():
    steps = [view("a", exact=500)], [view("b", exact=5)], [view("b", exact=30)]
    assert judge(*steps[:2]).reason == "NoTraffic"
    assert judge(*steps).reason == "Reported"


def test_arguments_that_keep_engines_from_counting_are_named_before_there_is_traffic():
    drafts = {"type": "vLLM", "args": ["-sc.method=dspark", "-dcp", "8"]}
    cr = make_cr(engine=drafts)
    silent = replace(view(), silent=("d0",))
    for answers in (None, {"no_signature": 10}):
        found = warned(judge_answers(cr, answers), [silent], cr)
        assert (found.status, found.reason) == ("False", "Unsupported")
        for argument in ("spec.engine.args[0] (-sc.method=dspark)", "spec.engine.args[1] (-dcp 8)"):
            assert found.message.count(argument) == 2, "of prefill and of decode engines"
    after = make_cr(engine={"type": "vLLM"}, status={"conditions": [found._asdict()]})
    assert judge_answers(after, None).reason == "NoTraffic", "once they are removed"


def test_what_keeps_decode_engines_from_counting_says_nothing_of_prompts():
    cr = make_cr(engine={"type": "vLLM"}, decode={"args": ["--enable-dbo"]})
    good, bad = judge_answers(cr, {"exact": 100}), judge_answers(cr, {"no_signature": 100})
    found = warned(good, [], cr)
    assert (found.status, found.reason) == ("False", "NotCounted")
    assert "from their steps: spec.decode.args[0] (--enable-dbo): micro-batches" in found.message
    assert warned(found, [], cr) == found
    assert warned(found, [], make_cr(engine={"type": "vLLM"})) == good, "once it is removed"
    assert warned(bad, [], cr).reason == "Missing"


def test_a_window_lasts():
    window, _ = advance(None, [view(exact=0)], NOW)
    window, answers = advance(window, [view(exact=1000)], NOW + WINDOW / 2)
    assert answers is None
    window, answers = advance(window, [view(exact=1000)], NOW + WINDOW)
    assert answers == {"exact": 1000}
    assert advance(window, [view(exact=1000)], NOW + 2 * WINDOW)[1] is None, "seen once, judged once"


def test_little_traffic_gathers():
    window = None
    for count in range(LEAST_ANSWERS + 1):
        window, answers = advance(window, [view(exact=count)], NOW + count * timedelta(hours=1))
        assert (answers is None) is (count < LEAST_ANSWERS)


def test_routers_that_do_not_answer_are_left_out():
    silent = RouterView(RouterPod("q", "127.0.0.1", None), problem="does not answer")
    window, _ = advance(None, [view(exact=0), silent], NOW)
    assert advance(window, [view(exact=10), silent], NOW + WINDOW)[1] == {"exact": 10}


def test_without_news_the_last_word_stays():
    said = {"type": SIGNATURES_REPORTED, "status": "False", "reason": "Missing", "message": "all"}
    found = judge_answers(make_cr({"conditions": [said]}), None)
    assert (found.status, found.reason, found.message) == ("False", "Missing", "all")


def test_an_engine_of_a_version_that_was_not_tested_is_told_while_it_runs():
    plain = judge([view(exact=0)], [view(exact=100)])
    new = [replace(view(), untested=("0.34.1",)), replace(view("r1"), untested=("0.34.1", "0.35.0"))]
    told = warned(plain, new, make_cr())
    assert told[:3] == plain[:3]
    assert "never tested with: 0.34.1, 0.35.0; " in told.message
    assert told.message.startswith(plain.message)
    assert warned(told, new, make_cr()) == told  # what was said before stays said, once
    assert warned(told, [view()], make_cr()) == plain


def test_decode_engines_that_have_failed_to_count_are_told_until_they_count():
    good = judge([view(exact=0)], [view(exact=100)])
    bad = judge([view(no_signature=0)], [view(no_signature=100)])
    silent = [
        replace(view(), silent=("d-1",)),
        replace(view("r1"), silent=("d-0", "d-1"), untested=("0.34.1",)),
    ]
    told = warned(good, silent, make_cr())
    assert (told.status, told.reason) == ("False", "NotCounted")
    assert "d-0, d-1; " in told.message
    assert "never tested with: 0.34.1; " in told.message
    assert warned(told, silent, make_cr()) == told
    assert warned(told, [view()], make_cr()) == good
    worse = warned(bad, silent, make_cr())
    assert (worse.status, worse.reason) == ("False", "Missing")
    assert "d-0, d-1" in worse.message
    assert warned(worse, [view()], make_cr()) == bad


def test_a_router_tells_which_decode_engines_count_no_more():
    decode = [
        {"name": "d-1", "counting": False},
        {"name": "d-0", "counting": True},
        {"name": "d-2"},
        {"counting": False},
        "x",
    ]
    assert RouterView.of(POD, STATE | {"decode": decode}).silent == ("d-1",)


@pytest.mark.parametrize(
    "told", [None, [], [{"untested": None}, {"untested": 7}, {"untested": "a b"}, "x"], {}]
)
def test_a_router_that_tells_nothing_of_versions_warns_of_none(told):
    assert RouterView.of(POD, STATE | {"decode": told}).untested == ()


def test_a_router_tells_the_versions_of_its_decode_engines():
    decode = [{"untested": "0.35.0"}, {"untested": "0.34.1"}, {"untested": "0.35.0"}, {"untested": None}]
    assert RouterView.of(POD, STATE | {"decode": decode}).untested == (
        "0.34.1",
        "0.35.0",
    )
