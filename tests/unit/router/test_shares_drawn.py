"""The limit of an engine holds over all routers in courses that are drawn: messages late, lost or reordered, routers that come and go."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from eldr_router.plan.members import HELD_SECONDS, Address
from tests.support.world import ENGINES, World, flights


def lapses(world: World) -> bool:
    """Whether everybody that runs knows what those have who are stopped: nothing else can be divided exactly."""
    stopped = {address: node for address, node in world.nodes.items() if node.stopped}
    for node in world.running().values():
        for address, silent in stopped.items():
            peer = node.shares.peers.get(address)
            if peer is None or peer.report is None or peer.report.router != silent.shares.router:
                return False
            if any(peer.report.in_flight.get(engine, 0) < n for engine, n in silent.flights.items()):
                return False
            if peer.heard is None or world.clock - peer.heard > HELD_SECONDS / 2:
                return False
    return True


class Routers(RuleBasedStateMachine):
    """Everything that may happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.start(0)

    def node(self, data) -> Address:
        return data.draw(st.sampled_from(sorted(self.world.running())))

    def stopped(self) -> list[Address]:
        return sorted(self.world.nodes.keys() - self.world.running().keys())

    @precondition(lambda self: len(self.world.running()) > 1)
    @rule(data=st.data())
    def stop(self, data):
        self.world.stop(self.node(data))

    @precondition(lambda self: self.stopped() and lapses(self.world))
    @rule()
    def lapse(self):
        self.world.lapse()

    @precondition(lambda self: self.stopped())
    @rule(data=st.data())
    def wake(self, data):
        self.world.wake(data.draw(st.sampled_from(self.stopped())))

    @rule(place=st.integers(0, 3))
    def start(self, place):
        if ("r", place) not in self.world.nodes and not self.stopped():
            self.world.start(place)

    @precondition(lambda self: len(self.world.running()) > 1)
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
            self.world.hear(address, to)

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
        self.world.fill(node, engine)

    @rule(data=st.data(), engine=st.sampled_from(ENGINES))
    def finish(self, data, engine):
        node = self.world.nodes[self.node(data)]
        node.flights[engine] = max(0, node.flights[engine] - 1)

    @rule(data=st.data(), waiting=st.integers(0, 20), leaving=st.booleans())
    def give(self, data, waiting, leaving):
        node = self.world.nodes[self.node(data)]
        node.shares.give(flights(node), waiting, leaving=leaving)

    def teardown(self):
        """However it went: once messages flow and what is too much has ended, the whole limit is in use."""
        world = self.world
        for address in self.stopped():
            world.wake(address)
        world.talk()
        for node in world.nodes.values():
            node.flights.clear()
        world.lapse(2 * HELD_SECONDS)
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
        name: rng.choice((0.2, 1, 4))
        for name in ("start", "die", "list", "limit", "give", "slow", "fill", "stop")
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
            "stop": rates["stop"],
            "lapse": rates["stop"] * 2,
            "wake": rates["stop"] * 2,
        }.items(),
        strict=True,
    )
    for name in rng.choices(names, weights, k=steps):
        address = rng.choice(sorted(world.running()))
        node = world.nodes[address]
        others = sorted(node.shares.peers)
        engine = rng.choice(engines)
        stopped = sorted(world.nodes.keys() - world.running().keys())
        if name == "stop":
            if len(world.running()) > 1:
                world.stop(address)
        elif name == "lapse":
            if stopped and lapses(world):
                world.lapse()
        elif name == "wake":
            if stopped:
                world.wake(rng.choice(stopped))
        elif name == "start":
            address = ("r", rng.randrange(places))
            if address not in world.nodes and not stopped:
                world.start(address[1])
        elif name == "die":
            if len(world.running()) > 1:
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
            world.hear(address, rng.choice(others))
        elif name == "ask" and others and len(world.letters) < 8:
            world.ask(address, rng.choice(others))
        elif name in ("deliver", "lose") and world.letters:
            letter = rng.choice(world.letters)
            world.step(letter) if name == "deliver" else world.letters.remove(letter)
        elif name == "fill":
            world.fill(node, engine)
        elif name == "finish":
            node.flights[engine] = max(0, node.flights[engine] - rng.randint(1, 4))
        elif name == "give":
            waiting, leaving = rng.choice((0, 0, 20)), rng.random() < 0.2
            node.shares.give({engine: node.flights[engine] for engine in engines}, waiting, leaving=leaving)


def lend(seed: int, steps: int = 250) -> None:
    """Routers that stay lend each other much, on and on, and leave, and begin new turns."""
    rng = random.Random(seed)
    world = World(limit=rng.randint(2, 24))
    for place in range(rng.randint(2, 4)):
        world.start(place)
    world.talk()
    leave, often = rng.choice((0, 0.3, 0.6)), rng.choice((1, 6))
    weights = {
        "hear": 12,
        "ask": 4,
        "deliver": 6,
        "give": 8,
        "fill": 8,
        "finish": 6,
        "blip": often,
        "talk": 2,
    }
    for name in rng.choices(list(weights), list(weights.values()), k=steps):
        address, to = rng.sample(sorted(world.nodes), 2)
        node, engine = world.nodes[address], rng.choice(ENGINES)
        if name == "hear":
            world.hear(address, to)
        elif name == "ask":
            world.ask(address, to)
        elif name == "deliver" and world.letters:
            world.step(rng.choice(world.letters))
        elif name == "give":
            node.shares.give(flights(node), rng.choice((0, 0, 20)), leaving=rng.random() < leave)
        elif name == "fill":
            for one in rng.sample(list(world.nodes.values()), 2):
                world.fill(one, engine)
        elif name == "finish":
            node.flights[engine] = rng.randint(0, node.flights[engine])
        elif name == "blip":
            world.blip(address)
        elif name == "talk":
            world.talk(1)
    for address, node in world.nodes.items():
        node.flights.clear()
        world.blip(address)  # what is owed ends with the turn
    world.talk()
    assert all(sum(world.bounds(engine)) == world.limit for engine in ENGINES)


@pytest.mark.long  # the state machine below draws such courses, too
@pytest.mark.parametrize("act", [wander, lend])
@pytest.mark.parametrize("part", range(4))
def test_by_plain_chance(part, act):
    for seed in range(250 * part, 250 * (part + 1)):
        act(seed)


@pytest.mark.parametrize(("seed", "steps"), [(2026, 250), (75, 1000)])
def test_room_that_is_lent_on_and_on_while_a_view_returns(seed, steps):
    """Courses in which an engine once had one sequence more than its limit."""
    lend(seed, steps)


Routers.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestRouters = pytest.mark.slow(Routers.TestCase)
