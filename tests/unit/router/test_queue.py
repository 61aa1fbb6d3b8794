"""Whoever waits for room gets it in turn, and none is lost or given out twice, whatever comes and goes."""

from __future__ import annotations

import random
from collections import deque

import pytest

from eldr_router.engines.endpoint import Endpoint, Occupancy
from eldr_router.engines.registry import Admission, Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.flow.queue import Queue
from eldr_router.http.errors import RouterError
from eldr_router.telemetry.metrics import Metrics

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
        self.occupancy: Occupancy | None = None
        self.error: RouterError | None = None

    def admitted(self, admission: Admission) -> None:
        self.admission = admission
        self.world.order.append(self.number)

    def turned_away(self, error: RouterError) -> None:
        self.error = error

    def place(self, endpoint: Endpoint) -> None:
        self.occupancy = Occupancy(endpoint, self.sequences)
        self.admission.release()


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
        return sum(max(0, self.limit - e.in_flight) for e in ends) - self.registry._reserved


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
                assert not waiting, "somebody overtook"
                asked.admitted(now)
                admitted.append(asked)
        elif what == "place" and admitted and world.free():
            asked = admitted[0]
            admitted.remove(asked)
            asked.place(rng.choice(world.free()))
            running.append(asked)
        elif what == "end" and running:
            running.pop(rng.randrange(len(running))).occupancy.release()
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
        assert list(world.queue._entries) == waiting, "in the order of arrival"
        if waiting:
            assert world.room() < 1, "the first one waits beside room"
    world.queue.close()
    assert not world.queue._entries
    assert sorted(world.order) == world.order, "first come, first served"
