"""Routers are asked beside the passes: a pass reads the last answer, and is woken by another one."""

import asyncio
from types import SimpleNamespace

import pytest

from eldr_operator.kube.authorities import Authorities
from eldr_operator.locality import polls as module
from eldr_operator.locality.polls import Polls
from eldr_operator.locality.router_view import RouterPod, RouterView
from eldr_operator.reconcile import POLL_REST_SECONDS, poll_seconds
from tests.unit.operator.builders import NOW

POD, OTHER = RouterPod("r0", "10.0.0.1", None), RouterPod("r1", "10.0.0.2", None)
KEY = ("n", "x")


class Routers:
    """Stands for the routers: answers what it is told, or hangs."""

    def __init__(self):
        self.samples = 0
        self.asked = []
        self.hanging = set()
        self.problem, self.refuses = "", False
        self.answered = asyncio.Event()

    async def look(self, _client, pods, token, trust):
        self.asked.append(([pod.name for pod in pods], token))
        if self.hanging & {pod.name for pod in pods}:
            await asyncio.Event().wait()
        self.answered.set()
        told = {"samples": self.samples, "problem": self.problem, "refuses_token": self.refuses}
        return [RouterView(pod, **told) for pod in pods]

    async def again(self):
        self.answered.clear()
        async with asyncio.timeout(30):
            await self.answered.wait()
        await asyncio.sleep(0)


@pytest.fixture
def routers(monkeypatch):
    made = Routers()
    monkeypatch.setattr(module.routers, "look", made.look)
    return made


@pytest.fixture
def woken():
    return []


@pytest.fixture
async def polls(woken):
    made = Polls(None, woken.append, lambda: NOW, Authorities(None))
    yield made
    made.close()


async def test_nothing_is_known_before_the_first_answer_which_wakes(polls, routers, woken):
    assert polls.latest(KEY, [POD], "t") is None
    await routers.again()
    assert woken == [KEY]
    seen = polls.latest(KEY, [POD], "t")
    assert ([view.pod for view in seen.views], seen.at) == ([POD], NOW)
    assert routers.asked == [(["r0"], "t")], "a pass asks nobody"


async def test_without_routers_there_is_nothing_to_wait_for(polls, routers):
    assert polls.latest(KEY, [], "t").views == []
    assert not routers.asked


async def test_the_same_answer_wakes_nobody(polls, routers, woken):
    polls.latest(KEY, [POD], "t")
    polls.ask_every(KEY, 0.001)
    await routers.again()
    await routers.again()
    assert woken == [KEY]
    routers.samples = 7
    await routers.again()
    await routers.again()
    assert woken == [KEY, KEY]


async def test_a_hung_router_keeps_no_other_deployment_waiting(polls, routers, woken):
    routers.hanging = {"r0"}
    for number in range(module.AT_ONCE - 1):
        assert polls.latest(("n", f"hung-{number}"), [POD], "t") is None
    assert polls.latest(KEY, [OTHER], "t") is None
    await routers.again()
    assert woken == [KEY]
    assert polls.latest(KEY, [OTHER], "t").views


async def test_a_new_router_is_asked_at_once_and_is_a_problem_until_then(polls, routers):
    polls.latest(KEY, [POD], "t")
    await routers.again()
    seen = polls.latest(KEY, [POD, OTHER], "t")
    assert [view.problem for view in seen.views] == ["", "has not been asked yet"]
    await routers.again()
    assert [view.problem for view in polls.latest(KEY, [POD, OTHER], "t").views] == ["", ""]


async def test_a_new_token_is_used_at_once(polls, routers):
    polls.latest(KEY, [POD], "old")
    await routers.again()
    polls.latest(KEY, [POD], "new")
    await routers.again()
    assert routers.asked[-1] == (["r0"], "new")


async def test_a_shorter_interval_counts_at_once(polls, routers):
    polls.latest(KEY, [POD], "t")
    polls.ask_every(KEY, 3600.0)
    await routers.again()
    polls.ask_every(KEY, 0.001)
    await routers.again()
    await routers.again()


async def test_routers_that_do_not_answer_are_asked_less_and_less(polls, routers, monkeypatch):
    pauses, real = [], SimpleNamespace(**vars(asyncio))

    def at_once(pause):
        pauses.append(pause)
        return asyncio.timeout(0)

    real.timeout = at_once
    monkeypatch.setattr(module.random, "uniform", lambda *_: 1.0)
    monkeypatch.setattr(module, "asyncio", real)
    routers.problem = "does not answer"
    polls.latest(KEY, [POD], "t")
    for _ in range(5):
        await routers.again()
    routers.problem = ""
    await routers.again()
    await routers.again()
    assert pauses[:4] == [10.0, 20.0, 30.0, 30.0]
    assert pauses[-1] == 5.0


async def test_a_router_that_misses_an_answer_is_as_it_was(polls, routers, woken):
    polls.latest(KEY, [POD], "t")
    polls.ask_every(KEY, 0.001)
    await routers.again()
    for misses, problem in ((1, ""), (2, ""), (3, "does not answer")):
        routers.problem = "does not answer"
        await routers.again()
        assert polls.latest(KEY, [POD], "t").views[0].problem == problem, misses
        if misses == 2:
            assert woken == [KEY]
    routers.problem = ""
    await routers.again()
    assert polls.latest(KEY, [POD], "t").views[0].problem == ""


async def test_the_first_answer_may_be_late(polls, routers, woken, monkeypatch):
    look = routers.look

    async def late(*asked):
        monkeypatch.setattr(module.routers, "look", look)
        routers.asked.append("late")
        return [RouterView(POD, problem="does not answer")]

    monkeypatch.setattr(module.routers, "look", late)
    polls.latest(KEY, [POD], "t")
    await routers.again()
    assert routers.asked[0] == "late"
    assert [view.problem for view in polls.latest(KEY, [POD], "t").views] == [""]
    assert woken == [KEY]


async def test_a_router_that_refuses_the_token_is_told_at_once(polls, routers):
    polls.latest(KEY, [POD], "t")
    polls.ask_every(KEY, 0.001)
    await routers.again()
    routers.problem, routers.refuses = "answers 401", True
    await routers.again()
    assert polls.latest(KEY, [POD], "t").views[0].problem == "answers 401"


async def test_routers_of_a_deployment_that_is_gone_are_left_alone(polls, routers):
    polls.latest(KEY, [POD], "t")
    polls.ask_every(KEY, 0.001)
    await routers.again()
    polls.forget(KEY)
    asked = len(routers.asked)
    await asyncio.sleep(0.05)
    assert len(routers.asked) == asked
    assert polls.latest(KEY, [POD], "t") is None


async def test_routers_that_do_not_answer_for_a_night_are_still_asked(polls, routers, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_PAUSE_SECONDS", 0.0)
    routers.problem = "does not answer"
    polls.latest(KEY, [POD], "t")
    polls.ask_every(KEY, 1e-6)
    async with asyncio.timeout(60):
        while len(routers.asked) < 1100:  # 2 to the power of so many is no float
            await asyncio.sleep(0)


async def test_an_answer_that_breaks_the_reader_is_a_problem_and_the_next_one_counts(
    polls, routers, woken, caplog, monkeypatch
):
    look, broken = routers.look, [RuntimeError("a bug"), RuntimeError("a bug")]

    async def breaking(*asked):
        if broken:
            raise broken.pop()
        return await look(*asked)

    monkeypatch.setattr(module.routers, "look", breaking)
    polls.latest(KEY, [POD], "t")
    async with asyncio.timeout(30):
        while not woken:
            await asyncio.sleep(0)
    assert "a bug" in caplog.text
    assert [view.problem for view in polls.latest(KEY, [POD], "t").views] == [
        "cannot be asked (RuntimeError)"
    ]
    polls.ask_every(KEY, 0.001)
    await routers.again()
    assert [view.problem for view in polls.latest(KEY, [POD], "t").views] == [""]


@pytest.mark.parametrize(
    ("policy", "in_effect", "seconds"),
    [
        ("ELDR", {"ELDR"}, 5.0),
        ("MarginalUnion", set(), 5.0),
        ("JSQ", {"JSQ"}, POLL_REST_SECONDS),
        ("JSQ", set(), POLL_REST_SECONDS),
        ("JSQ", {"JSQ", "MarginalUnion"}, 5.0),
    ],
)
def test_routers_that_have_not_read_the_policy_yet_are_asked_often(policy, in_effect, seconds):
    assert poll_seconds(policy, in_effect, 5.0) == seconds
