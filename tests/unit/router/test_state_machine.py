"""The state machine of a request, over every sequence of events up to a length."""

import itertools
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eldr_router.flow import vocabulary
from eldr_router.flow.state_machine import step
from eldr_router.flow.vocabulary import Phase, State

EXPIRES = 10.0
EARLY, LATE = 5.0, 11.0
ANSWERS = ("status", "error_event", "rate_limited", "aborted")


@dataclass
class Driver:
    """Carries actions out on paper, and holds every one of them against the rules."""

    state: State = field(default_factory=State)
    leg: object = None
    sent: bool = False
    result: int = 0  # prefill results so far
    pulled: set = field(default_factory=set)  # results that an engine may have pulled
    handed: bool = False
    expires: float = math.inf
    answers: list = field(default_factory=list)
    freed: set = field(default_factory=set)
    kept: bool = False
    heard: bool = False
    waits: bool = False
    over: bool = False

    def take(self, event) -> bool:
        """Feed an event if it can happen now; tell whether it could."""
        if not self.possible(event):
            return False
        was = self.state
        if isinstance(event, vocabulary.NoEndpoint | vocabulary.NoPrefillEndpoint):
            self.leg = None  # it was not begun
        if isinstance(event, vocabulary.EngineFull) and not self.over and self.leg.kv:
            self.pulled.discard(self.result)  # nothing was read
            self.handed, self.sent = True, False
        self.state, actions = step(self.state, event)
        if isinstance(event, vocabulary.Prefilled):
            self.result += 1
            self.handed = event.kv
            self.expires = event.expires
        if self.over:
            assert (self.state, actions) == (was, ()), "nothing happens after the end"
        for at, action in enumerate(actions):
            self.do(action, event, last=at == len(actions) - 1, at=getattr(event, "at", EARLY))
        if isinstance(event, vocabulary.PullConfirmed):
            self.heard = True
        if isinstance(event, vocabulary.PullConfirmed | vocabulary.Ready) and event.at <= self.expires:
            self.expires = math.inf
        if self.state.phase is Phase.OVER and not self.over:
            self.over = True
            assert self.leg is None, "every leg is left: counts are back at zero"
            assert len([a for a in self.answers if not isinstance(a, vocabulary.Begin)]) <= 1
            gone = isinstance(event, vocabulary.ClientDisconnected)
            assert gone or not isinstance(self.answers[-1], vocabulary.Begin), (
                "every response that began has an end"
            )
        return True

    def possible(self, event) -> bool:
        kind = type(event)
        if kind in (vocabulary.Start, vocabulary.ClientDisconnected):
            return kind is vocabulary.ClientDisconnected or self.state.phase is Phase.NEW
        if self.over:
            return True
        leg = type(self.leg)
        match kind:
            case vocabulary.NoEndpoint:
                return leg is vocabulary.Decode and not self.sent
            case vocabulary.NoPrefillEndpoint:
                return leg is vocabulary.Prefill
            case vocabulary.RetryPlacement:
                return self.waits
            case vocabulary.EngineFull:
                return leg is vocabulary.Decode and self.sent and not self.heard
            case vocabulary.Prefilled:
                return leg is vocabulary.Prefill
            case vocabulary.Connected | vocabulary.ConnectFailed | vocabulary.Exhausted:
                return self.leg is not None and not self.sent
            case vocabulary.PullConfirmed | vocabulary.Ready:
                return leg is vocabulary.Decode and self.sent and not self.begun
            case vocabulary.Ended:
                return self.begun
            case vocabulary.Answered:
                return leg is vocabulary.Prefill or (self.sent and not self.begun)
            case vocabulary.Broken:
                return leg is vocabulary.Prefill or self.sent
            case _:
                return leg is vocabulary.Decode

    @property
    def begun(self) -> bool:
        return any(isinstance(a, vocabulary.Begin) for a in self.answers) and not self.over

    def do(self, action, event, *, last: bool, at: float) -> None:
        match action:
            case vocabulary.Prefill() | vocabulary.Decode():
                assert last, "what a leg reports at once must find nothing left to do"
                assert self.leg is None, "one leg at a time"
                assert not self.answers, "nothing begins after a response began"
                self.leg, self.sent, self.heard, self.waits = action, False, False, False
                if isinstance(action, vocabulary.Prefill):
                    self.handed = False
                    self.expires = math.inf
                else:
                    assert action.kv == self.handed, "a result goes along exactly if there is one"
                    self.expires = self.expires if action.kv else math.inf
            case vocabulary.Wait():
                assert last
                assert self.leg is None
                assert self.handed, "only a result is worth a wait"
                self.waits = True
            case vocabulary.Send(kv):
                assert isinstance(self.leg, vocabulary.Decode)
                assert not self.sent
                self.sent = True
                if kv:
                    assert self.handed
                    assert self.result not in self.pulled, "a prefill result is used once"
                    assert at <= self.expires, "no result is sent after its lease"
                    self.pulled.add(self.result)
            case vocabulary.Leave():
                assert self.leg is not None, "a leg is left once"
                self.leg = None
                if self.sent or at > self.expires:
                    self.handed = False
            case vocabulary.Begin():
                assert self.sent
                assert not self.answers
                assert at <= self.expires or (event.guards and not self.state.streams), (
                    "nothing that may rest on overwritten blocks reaches the client"
                )
                self.answers.append(action)
            case vocabulary.Keep():
                assert event.cause == "rate_limited"
                assert self.leg is not None, "only a leg that is there has an answer"
                self.kept = True
            case vocabulary.PassOn() | vocabulary.Fail():
                assert not self.answers
                if isinstance(action, vocabulary.PassOn):
                    assert self.kept if action.kept else isinstance(event, vocabulary.Answered), (
                        "there is an answer"
                    )
                self.answers.append(action)
            case vocabulary.End() | vocabulary.EndBroken():
                assert isinstance(self.answers[-1], vocabulary.Begin)
                self.answers.append(action)
            case vocabulary.Free():
                answered = isinstance(event, vocabulary.Answered) or getattr(event, "cause", "") in ANSWERS
                assert self.result in self.pulled if answered else self.handed
                assert self.result not in self.freed, "a result is freed once"
                self.freed.add(self.result)
                self.pulled.add(self.result)


def events(legs=("p0", "d0", "d1")):
    prefill = legs[0]
    yield vocabulary.Start()
    yield vocabulary.ClientDisconnected()
    yield vocabulary.Ended()
    yield vocabulary.NoPrefillEndpoint()
    yield vocabulary.NoEndpoint(503, "none", "none")
    yield vocabulary.NoEndpoint(429, "full", "overloaded", may_wait=True)
    yield vocabulary.Prefilled(prefill, kv=True, expires=EXPIRES)
    yield vocabulary.Prefilled(prefill, kv=False, expires=math.inf)
    yield vocabulary.Tick("d0", LATE)
    for engine in legs:
        yield vocabulary.ConnectFailed(engine)
        yield vocabulary.Exhausted(engine)
        yield vocabulary.Broken(engine, "reset", "x")
        yield vocabulary.Broken(engine, "status", "x", unavailable=True)
        yield vocabulary.Broken(engine, "reset", "x", doubtful=True)
        yield vocabulary.Answered(engine)
    yield vocabulary.EngineFull("d0")
    yield vocabulary.RetryPlacement(EARLY)
    yield vocabulary.RetryPlacement(LATE)
    yield vocabulary.Broken("d0", "error_event", "x")
    yield vocabulary.Broken("d0", "rate_limited", "x")
    yield vocabulary.Broken(prefill, "rate_limited", "x")
    for at in (EARLY, LATE):
        yield vocabulary.Connected("d0", at)
        yield vocabulary.Ready("d0", at, guards=True)
        yield vocabulary.PullConfirmed("d0", at)
        yield vocabulary.Ready("d0", at)


ALL = tuple(events())
STARTS = [
    State(attempts=attempts, split=split, streams=streams)
    for attempts, (split, streams) in itertools.product((1, 2), ((True, True), (True, False), (False, True)))
]


def walk(driver: Driver, length: int) -> int:
    """Try every possible sequence; return how many there were."""
    if not length or driver.over:
        for event in ALL if driver.over else ():
            copied(driver).take(event)
        return 1
    count = 0
    for event in ALL:
        branch = copied(driver)
        if branch.take(event):
            count += walk(branch, length - 1)
    return count


def copied(driver: Driver) -> Driver:
    own = {"pulled": set(driver.pulled), "freed": set(driver.freed), "answers": list(driver.answers)}
    return Driver(**{**vars(driver), **own})


@pytest.mark.slow
@pytest.mark.parametrize("state", STARTS, ids=lambda s: f"{s.attempts}-{s.split}-{s.streams}")
def test_every_short_sequence_of_events(state):
    driver = Driver(state)
    driver.take(vocabulary.Start())
    assert walk(driver, 4) > 100


@given(st.sampled_from(STARTS), st.integers(1, 4), st.lists(st.sampled_from(ALL), max_size=60))
def test_every_long_sequence_of_events(state, attempts, sequence):
    driver = Driver(replace(state, attempts=attempts))
    driver.take(vocabulary.Start())
    for event in sequence:
        driver.take(event)
    driver.take(vocabulary.ClientDisconnected())
    assert driver.over
    assert driver.leg is None


def play(*happened, state=None):
    """Return the last state and all actions of a sequence."""
    state, done = state or State(), []
    for event in (vocabulary.Start(), *happened):
        state, actions = step(state, event)
        done += actions
    return state, done


PREFILLED = vocabulary.Prefilled("p0", kv=True, expires=EXPIRES)


def test_only_a_refused_connection_lets_a_result_go_to_another_engine():
    _, done = play(PREFILLED, vocabulary.ConnectFailed("d0"), vocabulary.Connected("d1", 1))
    assert done[-1] == vocabulary.Send(kv=True)
    _, done = play(PREFILLED, vocabulary.Connected("d0", 1), vocabulary.Broken("d0", "reset", "x"))
    assert done[-1] == vocabulary.Prefill(frozenset(), frozenset({"d0"}))


@pytest.mark.parametrize(
    "late", [vocabulary.PullConfirmed("d0", LATE), vocabulary.Ready("d0", LATE), vocabulary.Tick("d0", LATE)]
)
def test_whatever_comes_after_the_lease_is_prefilled_again(late):
    _, done = play(PREFILLED, vocabulary.Connected("d0", 1), late)
    assert isinstance(done[-1], vocabulary.Prefill)
    assert not any(isinstance(action, vocabulary.Begin) for action in done)


def test_a_whole_answer_outlasts_its_lease_where_the_engine_keeps_the_deadline():
    begun, kinds = (PREFILLED, vocabulary.Connected("d0", 1)), (vocabulary.Tick, vocabulary.Ready)
    _, done = play(*begun, *(late("d0", LATE, guards=True) for late in kinds), state=State(streams=False))
    assert isinstance(done[-1], vocabulary.Begin)
    for late in kinds:
        _, done = play(
            *begun, vocabulary.Tick("d0", LATE, guards=True), late("d0", LATE), state=State(streams=False)
        )
        assert done[-1] == vocabulary.Decode(kv=False, avoid=frozenset(), broken=frozenset({"d0"}))
        _, done = play(*begun, late("d0", LATE, guards=True))
        assert isinstance(done[-1], vocabulary.Prefill), "the first event of a stream shows the pull"


def test_a_late_pull_that_an_engine_refused_is_nobodys_fault():
    failed = vocabulary.Broken("d0", "status", "x", at=LATE)
    _, done = play(PREFILLED, vocabulary.Connected("d0", 1), failed, state=State(streams=False))
    assert done[-1] == vocabulary.Decode(kv=False, avoid=frozenset(), broken=frozenset({"d0"}))
    assert not {vocabulary.RecordFailure, vocabulary.Free} & {type(action) for action in done}


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_engines_in_doubt_cost_no_attempt(leg):
    """Else a request is given up although an engine is well that it was never sent to."""

    def failing(engine, **more):
        before = (PREFILLED, vocabulary.Connected(engine, 1)) if leg == "decode" else ()
        return (*before, vocabulary.Broken(engine, "reset", "x", **more))

    three = [event for engine in "abc" for event in failing(engine)]
    assert isinstance(play(*three)[1][-1], vocabulary.Fail), "a request that ends engines ends three at most"
    many = [event for engine in "abcdefg" for event in failing(engine, doubtful=True)]
    assert isinstance(play(*many)[1][-1], vocabulary.Prefill)
    again = [event for _ in range(4) for event in failing("a", doubtful=True)]
    assert isinstance(play(*again)[1][-1], vocabulary.Fail), "the same engine is no other one"
    late = [event for engine in "abc" for event in failing(engine, doubtful=True, at=2.0)]
    assert isinstance(play(*late, state=State(free_retry_until=1.0))[1][-1], vocabulary.Fail)


REFUSALS = [vocabulary.Answered("d0"), *(vocabulary.Broken("d0", cause, "x") for cause in ANSWERS)]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda event: getattr(event, "cause", "4xx"))
def test_a_result_that_an_engine_refused_is_freed_once(refusal):
    """vLLM frees it only if the body is one that it could read: else two chats pinned two thirds of a prefill engine's cache."""
    _, done = play(PREFILLED, vocabulary.Connected("d0", 1), refusal, vocabulary.ClientDisconnected())
    assert done.count(vocabulary.Free()) == 1
    assert not isinstance(done[-1], vocabulary.Free) or isinstance(refusal, vocabulary.Answered), (
        "before the next prefill"
    )
    _, done = play(PREFILLED, vocabulary.Connected("d0", 1), vocabulary.PullConfirmed("d0", 2), refusal)
    assert vocabulary.Free() not in done, "what was pulled is free already"


@pytest.mark.parametrize("cause", ["reset", "timeout", "protocol", "expired"])
def test_a_result_that_an_engine_may_still_read_is_not_freed(cause):
    _, done = play(PREFILLED, vocabulary.Connected("d0", 1), vocabulary.Broken("d0", cause, "x"))
    assert vocabulary.Free() not in done
