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

    async def again(self, times=1):
        for _ in range(times):
            self.answered.clear()
            async with asyncio.timeout(30):
                await self.answered.wait()
            await asyncio.sleep(0)


@pytest.fixture
def routers(monkeypatch):
    made = Routers()
    monkeypatch.setattr(module.routers, "look", made.look)
    return made


class Asked:
    """The routers of one deployment, as its passes see them."""

    def __init__(self):
        self.woken = []
        self.polls = Polls(None, self.woken.append, lambda: NOW, Authorities(None))

    def latest(self, *pods, key=KEY, token="t"):
        return self.polls.latest(key, pods, token)

    def problems(self, *pods):
        return [view.problem for view in self.latest(*pods).views]

    def every(self, seconds):
        self.polls.ask_every(KEY, seconds)


@pytest.fixture
async def asked():
    made = Asked()
    yield made
    made.polls.close()


async def test_nothing_is_known_before_the_first_answer_which_wakes(asked, routers):
    assert asked.latest(POD) is None
    await routers.again()
    assert asked.woken == [KEY]
    seen = asked.latest(POD)
    assert ([view.pod for view in seen.views], seen.at) == ([POD], NOW)
    assert routers.asked == [(["r0"], "t")], "a pass asks nobody"


async def test_without_routers_there_is_nothing_to_wait_for(asked, routers):
    assert asked.latest().views == []
    assert not routers.asked


async def test_the_same_answer_wakes_nobody(asked, routers):
    asked.latest(POD)
    asked.every(0.001)
    await routers.again(2)
    assert asked.woken == [KEY]
    routers.samples = 7
    await routers.again(2)
    assert asked.woken == [KEY, KEY]


async def test_a_hung_router_keeps_no_other_deployment_waiting(asked, routers):
    routers.hanging = {"r0"}
    for number in range(module.AT_ONCE - 1):
        assert asked.latest(POD, key=("n", f"hung-{number}")) is None
    assert asked.latest(OTHER) is None
    await routers.again()
    assert asked.woken == [KEY]
    assert asked.latest(OTHER).views


async def test_a_new_router_is_asked_at_once_and_is_a_problem_until_then(asked, routers):
    asked.latest(POD)
    await routers.again()
    assert asked.problems(POD, OTHER) == ["", "has not been asked yet"]
    await routers.again()
    assert asked.problems(POD, OTHER) == ["", ""]


async def test_a_new_token_is_used_at_once(asked, routers):
    asked.latest(POD, token="old")
    await routers.again()
    asked.latest(POD, token="new")
    await routers.again()
    assert routers.asked[-1] == (["r0"], "new")


async def test_a_shorter_interval_counts_at_once(asked, routers):
    asked.latest(POD)
    asked.every(3600.0)
    await routers.again()
    asked.every(0.001)
    await routers.again(2)


async def test_routers_that_do_not_answer_are_asked_less_and_less(asked, routers, monkeypatch):
    pauses, real = [], SimpleNamespace(**vars(asyncio))

    def at_once(pause):
        pauses.append(pause)
        return asyncio.timeout(0)

    real.timeout = at_once
    monkeypatch.setattr(module.random, "uniform", lambda *_: 1.0)
    monkeypatch.setattr(module, "asyncio", real)
    routers.problem = "does not answer"
    asked.latest(POD)
    await routers.again(5)
    routers.problem = ""
    await routers.again(2)
    assert pauses[:4] == [10.0, 20.0, 30.0, 30.0]
    assert pauses[-1] == 5.0


async def test_a_router_that_misses_an_answer_is_as_it_was(asked, routers):
    asked.latest(POD)
    asked.every(0.001)
    await routers.again()
    for misses, problem in ((1, ""), (2, ""), (3, "does not answer")):
        routers.problem = "does not answer"
        await routers.again()
        assert asked.problems(POD) == [problem], misses
        assert misses == 3 or asked.woken == [KEY]
    routers.problem = ""
    await routers.again()
    assert asked.problems(POD) == [""]


async def test_the_first_answer_may_be_late(asked, routers, monkeypatch):
    look = routers.look

    async def late(*_):
        monkeypatch.setattr(module.routers, "look", look)
        routers.asked.append("late")
        return [RouterView(POD, problem="does not answer")]

    monkeypatch.setattr(module.routers, "look", late)
    asked.latest(POD)
    await routers.again()
    assert routers.asked[0] == "late"
    assert asked.problems(POD) == [""]
    assert asked.woken == [KEY]


async def test_a_router_that_refuses_the_token_is_told_at_once(asked, routers):
    asked.latest(POD)
    asked.every(0.001)
    await routers.again()
    routers.problem, routers.refuses = "answers 401", True
    await routers.again()
    assert asked.problems(POD) == ["answers 401"]


async def test_routers_of_a_deployment_that_is_gone_are_left_alone(asked, routers):
    asked.latest(POD)
    asked.every(0.001)
    await routers.again()
    asked.polls.forget(KEY)
    before = len(routers.asked)
    await asyncio.sleep(0.05)
    assert len(routers.asked) == before
    assert asked.latest(POD) is None


async def test_routers_that_do_not_answer_for_a_night_are_still_asked(asked, routers, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_PAUSE_SECONDS", 0.0)
    routers.problem = "does not answer"
    asked.latest(POD)
    asked.every(1e-6)
    async with asyncio.timeout(60):
        while len(routers.asked) < 1100:  # 2 to the power of so many is no float
            await asyncio.sleep(0)


async def test_an_answer_that_breaks_the_reader_is_a_problem_and_the_next_one_counts(
    asked, routers, caplog, monkeypatch
):
    look, broken = routers.look, [RuntimeError("a bug"), RuntimeError("a bug")]

    async def breaking(*told):
        if broken:
            raise broken.pop()
        return await look(*told)

    monkeypatch.setattr(module.routers, "look", breaking)
    asked.latest(POD)
    async with asyncio.timeout(30):
        while not asked.woken:
            await asyncio.sleep(0)
    assert "a bug" in caplog.text
    assert asked.problems(POD) == ["cannot be asked (RuntimeError)"]
    asked.every(0.001)
    await routers.again()
    assert asked.problems(POD) == [""]


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
