"""The limit of an engine holds over all routers, whatever is delayed, lost or reordered, and whoever comes and goes."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from eldr_router.plan.lending import grants
from eldr_router.plan.shares import Address, Shares
from eldr_router.plan.split import View
from tests.support.world import ENGINES, World, flights


@pytest.mark.parametrize("limit", [0, 1, 3, 7, 256])
def test_a_split_is_the_whole_limit(limit):
    view = View(("a", "b", "c", "d"), limit)
    for engine in map(str, range(20)):
        shares = [view.share(router, engine) for router in view.members]
        assert sum(shares) == limit
        assert max(shares) - min(shares) <= 1


def test_with_fewer_places_than_routers_everybody_has_some():
    view = View(tuple("abcdefgh"), 2)
    for router in view.members:
        assert sum(view.share(router, f"decode-{i}") for i in range(32)) >= 3


class Routers(RuleBasedStateMachine):
    """Everything that may happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.start(0)

    def node(self, data) -> Address:
        return data.draw(st.sampled_from(sorted(self.world.nodes)))

    @rule(place=st.integers(0, 3))
    def start(self, place):
        if ("r", place) not in self.world.nodes:
            self.world.start(place)

    @precondition(lambda self: len(self.world.nodes) > 1)
    @rule(data=st.data(), leaves=st.booleans())
    def die(self, data, leaves):
        address = self.node(data)
        del self.world.nodes[address]
        if leaves:
            self.world.listed.discard(address)

    @rule(data=st.data())
    def unlist_the_dead(self, data):
        dead = sorted(self.world.listed - set(self.world.nodes))
        if dead:
            self.world.listed.discard(data.draw(st.sampled_from(dead)))

    @rule(data=st.data())
    def read_the_list(self, data):
        self.world.list(self.node(data))

    @rule(data=st.data(), limit=st.integers(0, 9))
    def change_the_limit(self, data, limit):
        self.world.limit = limit
        self.world.nodes[self.node(data)].shares.set_limit(limit)

    @rule(data=st.data())
    def take_the_limit(self, data):
        self.world.nodes[self.node(data)].shares.set_limit(self.world.limit)

    @rule(data=st.data())
    def ask(self, data):
        address = self.node(data)
        others = sorted(self.world.nodes[address].shares.peers)
        if others and len(self.world.letters) < 12:
            self.world.ask(address, data.draw(st.sampled_from(others)))

    @rule(data=st.data())
    def ask_and_hear(self, data):
        address = self.node(data)
        for to in sorted(self.world.nodes[address].shares.peers):
            self.world.ask(address, to)
            letter = self.world.letters[-1]
            self.world.step(letter)
            self.world.step(letter)

    @precondition(lambda self: self.world.letters)
    @rule(data=st.data())
    def deliver(self, data):
        self.world.step(data.draw(st.sampled_from(self.world.letters)))

    @precondition(lambda self: self.world.letters)
    @rule(data=st.data())
    def lose(self, data):
        letter = data.draw(st.sampled_from(self.world.letters))
        self.world.letters.remove(letter)
        letter.node.shares.silent(letter.to, "timeout")

    @rule(data=st.data(), engine=st.sampled_from(ENGINES), sequences=st.integers(1, 3))
    def admit(self, data, engine, sequences):
        self.world.admit(self.world.nodes[self.node(data)], engine, sequences)

    @rule(data=st.data(), engine=st.sampled_from(ENGINES))
    def fill(self, data, engine):
        node = self.world.nodes[self.node(data)]
        while self.world.admit(node, engine):
            pass

    @rule(data=st.data(), engine=st.sampled_from(ENGINES))
    def finish(self, data, engine):
        node = self.world.nodes[self.node(data)]
        node.flights[engine] = max(0, node.flights[engine] - 1)

    @rule(data=st.data(), waiting=st.integers(0, 20))
    def give(self, data, waiting):
        node = self.world.nodes[self.node(data)]
        node.shares.give(flights(node), waiting)

    def teardown(self):
        """However it went: once messages flow and what is too much has ended, the whole limit is in use."""
        world = self.world
        world.talk()
        for node in world.nodes.values():
            node.flights.clear()
        world.talk()
        for engine in ENGINES:
            assert sum(world.bounds(engine)) == world.limit, world.bounds(engine)
        assert not any(node.shares.awaited for node in world.nodes.values())


def wander(seed: int, steps: int = 250) -> None:
    """The same by plain chance, and many times as fast: rare orders need many tries."""
    rng = random.Random(seed)
    world = World(limit=rng.randint(1, 6))
    engines = ENGINES[: rng.randint(1, 2)]
    places = rng.randint(2, 4)
    world.start(0)
    rates = {
        name: rng.choice((0.2, 1, 4)) for name in ("start", "die", "list", "limit", "give", "slow", "fill")
    }
    names, weights = zip(
        *{
            "start": rates["start"] * 3,
            "die": rates["die"],
            "list": rates["list"] * 3,
            "limit": rates["limit"],
            "take": rates["limit"] * 2,
            "hear": 12,
            "ask": rates["slow"] * 4,
            "deliver": rates["slow"] * 6,
            "lose": 1,
            "fill": rates["fill"] * 6,
            "finish": 6,
            "give": rates["give"] * 4,
        }.items(),
        strict=True,
    )
    for name in rng.choices(names, weights, k=steps):
        address = rng.choice(sorted(world.nodes))
        node = world.nodes[address]
        others = sorted(node.shares.peers)
        engine = rng.choice(engines)
        if name == "start":
            address = ("r", rng.randrange(places))
            if address not in world.nodes:
                world.start(address[1])
        elif name == "die":
            if len(world.nodes) > 1:
                del world.nodes[address]
            for dead in world.listed - set(world.nodes):
                if rng.random() < 0.5:
                    world.listed.discard(dead)
        elif name == "list":
            world.list(address)
        elif name == "limit":
            world.limit = rng.randint(0, 8)
            node.shares.set_limit(world.limit)
        elif name == "take":
            node.shares.set_limit(world.limit)
        elif name == "hear" and others:
            world.ask(address, rng.choice(others))
            letter = world.letters[-1]
            world.step(letter)
            world.step(letter)
        elif name == "ask" and others and len(world.letters) < 8:
            world.ask(address, rng.choice(others))
        elif name in ("deliver", "lose") and world.letters:
            letter = rng.choice(world.letters)
            world.step(letter) if name == "deliver" else world.letters.remove(letter)
        elif name == "fill":
            while world.admit(node, engine):
                pass
        elif name == "finish":
            node.flights[engine] = max(0, node.flights[engine] - rng.randint(1, 4))
        elif name == "give":
            node.shares.give({engine: node.flights[engine] for engine in engines}, rng.choice((0, 0, 20)))


@pytest.mark.costly
@pytest.mark.parametrize("part", range(4))
def test_by_plain_chance(part):
    for seed in range(250 * part, 250 * (part + 1)):
        wander(seed)


Routers.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestRouters = pytest.mark.slow(Routers.TestCase)


def test_alone_it_has_the_whole_limit_at_once():
    shares = Shares("a", 4)
    assert shares.bound("d0") == 0, "nobody has said yet that it is alone"
    assert shares.awaited == ["the list of routers"]
    shares.set_addresses([])
    assert shares.bound("d0") == 4
    shares.set_limit(9)
    assert shares.bound("d0") == 9


def test_a_newcomer_waits_for_everybody():
    world = World(limit=6)
    first = world.start(0)
    while world.admit(first, "d0"):
        pass
    second = world.start(1)
    assert second.shares.awaited == ["r:0"]
    assert not world.admit(second, "d0")
    world.talk(1)
    world.talk(1)
    assert first.shares.bound("d0") == second.shares.bound("d1") == 3
    assert second.shares.bound("d0") == 0, "all of them run at the first one"
    first.flights["d0"] = 4
    world.talk(1)
    assert second.shares.bound("d0") == 2
    first.flights["d0"] = 0
    world.talk(1)
    assert second.shares.bound("d0") == 3


def test_a_silent_router_keeps_its_share_and_a_dead_one_does_not():
    world = World(limit=6)
    first, second = world.start(0), world.start(1)
    world.talk()
    first.shares.silent(("r", 1), "timeout")
    assert first.shares.bound("d0") == 3
    third = world.start(2)
    world.listed.discard(("r", 1))  # nobody can hear it: the third one cannot begin
    third.shares.set_addresses([("r", 0), ("r", 1)])
    world.ask(("r", 2), ("r", 0))
    while world.letters:
        world.step(world.letters[0])
    assert third.shares.awaited == ["r:0", "r:1"]
    del world.nodes["r", 1]
    assert second.flights["d0"] == 0
    world.talk()
    assert world.bounds("d0") == [3, 3]


def test_room_moves_to_where_the_demand_is():
    world = World(limit=8)
    for place in range(4):
        world.start(place)
    world.talk()
    busy = world.nodes["r", 1]
    for _ in range(40):
        for engine in ENGINES:
            while world.admit(busy, engine):
                pass
        for node in world.nodes.values():
            node.shares.give(flights(node), 0)
        world.talk(1)
    assert all(busy.flights[engine] >= 5 for engine in ENGINES), busy.flights
    busy.flights.clear()
    for _ in range(40):
        quiet = world.nodes["r", 3]
        for engine in ENGINES:
            while world.admit(quiet, engine):
                pass
        for node in world.nodes.values():
            node.shares.give(flights(node), 0)
        world.talk(1)
    assert all(quiet.flights[engine] >= 5 for engine in ENGINES), quiet.flights


def test_grants_follow_demand_and_leave_small_differences_alone():
    even = dict.fromkeys("abcd", 1.0)
    assert grants("a", {"a": 10, "b": 10, "c": 10, "d": 6}, even) == {}
    everybody = {"a": 10, "b": 10, "c": 10, "d": 0}
    given = [grants(router, everybody, even).get("d", 0) for router in everybody]
    assert given == [2, 2, 3, 0], "of equals one rounds up"
    assert [grants(router, {"a": 3, "b": 3, "c": 3, "d": 0}, even).get("d", 0) for router in "abc"] == [
        0,
        0,
        1,
    ]
    assert grants("a", {"a": 1, "b": 1, "c": 0}, {**even, "c": 20.0}) == {}, "nobody gives the last one"
    assert grants("a", {"a": 2, "b": 2, "c": 0}, {**even, "c": 20.0}) == {"c": 1}
    assert grants("a", {"a": 0, "b": -3}, even) == {}
