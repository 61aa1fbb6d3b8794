"""Whoever waits for room gets it in turn, and none is lost or given out twice, whatever comes and goes."""

from __future__ import annotations

import random
from collections import deque

import pytest

from eldr_router.http.errors import RouterError
from eldr_router.ops.metrics import Metrics
from eldr_router.plan.spec import EndpointSpec
from eldr_router.serve.queue import Queue
from eldr_router.state.endpoint import Endpoint, Lease
from eldr_router.state.registry import Admission, Registry

SECONDS = 10.0


class Timer:
    def __init__(self, at, call, *args) -> None:
        self.at, self.call, self.args, self.cancelled = at, call, args, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop whose time the test passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: deque[tuple] = deque()
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call, *args) -> None:
        self.soon.append((call, args))

    def call_later(self, seconds, call, *args) -> Timer:
        self.timers.append(Timer(self.now + seconds, call, *args))
        return self.timers[-1]

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.at <= self.now]:
            self.timers.remove(timer)
            if not timer.cancelled:
                timer.call(*timer.args)
        while self.soon:
            call, args = self.soon.popleft()
            call(*args)


class Asked:
    """A request: waits, takes a place, runs, ends."""

    def __init__(self, number: int, sequences: int, world: World) -> None:
        self.number, self.sequences, self.world = number, sequences, world
        world.asked[number] = sequences
        self.admission: Admission | None = None
        self.lease: Lease | None = None
        self.error: RouterError | None = None

    def admitted(self, admission: Admission) -> None:
        self.admission = admission
        self.world.order.append(self.number)

    def turned_away(self, error: RouterError) -> None:
        self.error = error

    def place(self, endpoint: Endpoint) -> None:
        self.lease = Lease(endpoint, self.sequences)
        self.admission.settle()


class World:
    def __init__(self, engines: int, limit: int, most: int) -> None:
        self.loop, self.limit, self.order = Loop(), limit, []
        self.asked: dict[int, int] = {}
        self.registry = Registry(self.loop.time)
        self.metrics = Metrics(self.registry)
        self.grow(engines)
        self.queue = Queue(
            self.loop, self.registry, self.metrics, lambda: self.limit, lambda: (most, SECONDS)
        )

    def grow(self, engines: int) -> None:
        self.registry.replace(
            "decode", [EndpointSpec("decode", f"d{i}", "h", i + 1, i) for i in range(engines)]
        )

    def free(self) -> list[Endpoint]:
        return [e for e in self.registry.endpoints("decode") if e.in_flight < self.limit]

    def room(self) -> int:
        ends = self.registry.endpoints("decode")
        return sum(max(0, self.limit - e.in_flight) for e in ends) - self.registry._undecided


@pytest.mark.parametrize("seed", range(20))
def test_everything_that_may_happen(seed):
    rng = random.Random(seed)
    world = World(engines=2, limit=2, most=6)
    waiting: list[Asked] = []
    admitted: list[Asked] = []
    running: list[Asked] = []
    for number in range(400):
        what = rng.choice(["come", "come", "place", "end", "end", "leave", "time", "grow", "limit"])
        if what == "come":
            asked = Asked(number, rng.choice((1, 1, 1, 2)), world)
            try:
                now = world.queue.admit(asked, asked.sequences)
            except RouterError as error:
                asked.error = error
                now = None
            if asked.error is not None:
                assert (asked.error.status, len(waiting)) == (429, 6)
            elif now is None:
                waiting.append(asked)
            else:
                full = len(waiting) == 6 and waiting[0].sequences > asked.sequences
                assert not waiting or full, "somebody overtook"
                asked.admitted(now)
                admitted.append(asked)
        elif what == "place" and admitted and world.free():
            asked = admitted[0]
            fits = [e for e in world.free() if e.in_flight + asked.sequences <= world.limit]
            if fits:
                admitted.remove(asked)
                asked.place(rng.choice(fits))
                running.append(asked)
            else:
                admitted.remove(asked)
                asked.admission.settle()  # as a request that no engine has room for
        elif what == "end" and running:
            running.pop(rng.randrange(len(running))).lease.release()
        elif what == "leave" and waiting:
            world.queue.leave(waiting.pop(rng.randrange(len(waiting))))
        elif what == "grow":
            world.grow(rng.choice((2, 3)))
        elif what == "limit":
            world.limit = rng.choice((2, 3))
            world.queue.wake()
        world.loop.turn(rng.choice((0.0, 3.0)) if what == "time" else 0.0)
        for asked in list(waiting):
            if asked.admission is not None:
                admitted.append(asked)
            if asked.admission is not None or asked.error is not None:
                waiting.remove(asked)
                assert asked.error is None or asked.error.status == 429
        assert (
            world.registry.queued
            == sum(asked.sequences for asked in waiting)
            == sum(entry.sequences for entry in world.queue._entries.values())
        )
        assert list(world.queue._entries) == waiting, "in the order of arrival"
        if waiting:
            first = waiting[0].sequences
            engines = world.registry.endpoints("decode")
            fits = first == 1 or world.registry.with_room(engines, world.limit, first)
            assert world.room() < first or not fits, "the first one waits beside room"
            if any(asked.sequences == 1 for asked in waiting):
                saved = max(engines, key=lambda e: world.limit - e.in_flight) if first > 1 else None
                free = sum(max(0, world.limit - e.in_flight) for e in engines if e is not saved)
                assert free <= world.registry._undecided, "one waits beside room that is left to nobody"
    world.queue.close()
    assert not world.queue._entries
    assert world.registry.queued == 0
    for sequences in (1, 2):
        order = [number for number in world.order if world.asked[number] == sequences]
        assert sorted(order) == order, "of those that want the same the first come is the first served"


@pytest.mark.patches
def test_where_nobody_may_wait_who_finds_room_goes_on_after_those_that_it_is_enough_for():
    world = World(engines=1, limit=4, most=0)
    (engine,) = world.registry.endpoints("decode")
    running = [Lease(engine, 1) for _ in range(4)]
    first = Asked(0, 2, world)
    world.registry.expects_room = lambda *_: True  # of another router
    assert world.queue.admit(first, 2) is None
    world.registry.expects_room = lambda *_: False
    running.pop().release()
    assert world.queue.admit(Asked(1, 1, world), 1) is not None, "one place is free, the first wants two"
    with pytest.raises(RouterError):
        world.queue.admit(Asked(2, 1, world), 1)
    assert world.metrics.totals()['eldr_router_rejected_total{reason="full"}'] == 1
    running.pop().release()
    running.pop().release()
    with pytest.raises(RouterError):
        world.queue.admit(Asked(3, 1, world), 1)
    assert world.order == [0], "both places are the first one's"


def test_one_that_waits_for_many_places_holds_up_no_other_engine():
    world = World(3, limit=4, most=8)
    ends = world.registry.endpoints("decode")
    running = [Lease(endpoint, 1) for endpoint in ends]
    wide = Asked(0, 4, world)
    assert world.queue.admit(wide, 4) is None
    singles = [Asked(number, 1, world) for number in range(1, 8)]
    for each in singles:
        assert world.queue.admit(each, 1) is None
    world.loop.turn()
    assert [each.number for each in singles if each.admission] == [1, 2, 3, 4, 5, 6], (
        "three on each of two engines"
    )
    for each in singles[:6]:
        (endpoint, *_) = world.registry.with_room(world.registry.spare(ends, 4, 1), 4, 1)
        each.place(endpoint)
    assert sorted(endpoint.in_flight for endpoint in ends) == [1, 4, 4], "one is left to it"
    assert world.registry.widest == 4, "other routers are told"
    running[[endpoint.in_flight for endpoint in ends].index(1)].release()
    world.loop.turn()
    assert wide.admission is not None
    assert world.registry.widest == 0


def test_one_that_wants_fewer_places_takes_none_of_those_that_are_left_to_another():
    world = World(3, limit=4, most=8)
    for endpoint, busy in zip(world.registry.endpoints("decode"), (1, 3, 3), strict=True):
        Lease(endpoint, busy)
    wide, pair = Asked(0, 4, world), Asked(1, 2, world)
    assert world.queue.admit(wide, 4) is None
    assert world.queue.admit(pair, 2) is None
    world.loop.turn()
    assert pair.admission is None, "there are two places, but on two engines"


def test_who_finds_room_is_not_turned_away_because_another_one_fills_the_queue():
    world = World(2, limit=4, most=1)
    running = [Lease(endpoint, 1) for endpoint in world.registry.endpoints("decode")]
    wide = Asked(0, 4, world)
    assert world.queue.admit(wide, 4) is None
    assert world.queue.admit(Asked(1, 1, world), 1) is not None, (
        "three places are free that the first one cannot use"
    )
    with pytest.raises(RouterError):
        world.queue.admit(Asked(2, 3, world), 3)
    assert world.metrics.totals()['eldr_router_rejected_total{reason="queue_full"}'] == 1
    running.pop().release()
    assert world.queue.admit(Asked(3, 3, world), 3) is None, "now it waits itself"
    assert wide.admission is not None, "first come, first served"


def test_one_that_waits_for_more_than_a_lower_limit_gets_as_much_as_one_may():
    world = World(2, limit=4, most=8)
    running = [Lease(endpoint, 1) for endpoint in world.registry.endpoints("decode")]
    wide = Asked(0, 4, world)
    assert world.queue.admit(wide, 4) is None
    world.limit = 2
    world.queue.wake()
    world.loop.turn()
    assert world.registry.wide == 2
    running.pop().release()
    world.loop.turn()
    assert wide.admission is not None
    assert wide.admission.sequences == 2
    assert world.registry.queued == 0


@pytest.mark.patches
def test_room_is_looked_for_once_for_all_that_want_as_much():
    world = World(2, limit=4, most=1000)
    for endpoint in world.registry.endpoints("decode"):
        Lease(endpoint, 3)
    for number in range(600):
        assert world.queue.admit(Asked(number, max(2, 4 - number), world), max(2, 4 - number)) is None
    world.loop.turn()
    asked, reserve = [], world.registry.reserve
    world.registry.reserve = lambda limit, sequences: asked.append(sequences) or reserve(limit, sequences)
    world.queue.wake()
    world.loop.turn()
    assert asked == [4, 3, 2]


def test_a_request_of_several_sequences_waits_for_one_engine():
    world = World(2, limit=2, most=8)
    running = [Asked(number, 1, world) for number in range(2)]
    for each, endpoint in zip(running, world.registry.endpoints("decode"), strict=True):
        each.admitted(world.queue.admit(each, 1))
        each.place(endpoint)
    both = Asked(2, 2, world)
    assert world.queue.admit(both, 2) is None, "one place on each engine is not enough"
    running[0].lease.release()
    world.loop.turn()
    assert both.admission is not None
