"""How routers split the limit of an engine, and lend each other room; courses that are drawn are in ``test_shares_drawn.py``."""

from __future__ import annotations

import pytest

from eldr_router.plan.lending import given_up, grants
from eldr_router.plan.members import HELD_SECONDS, LAPSE_SECONDS, STOPPED_SECONDS
from eldr_router.plan.shares import Shares
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
    world.fill(first, "d0")
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


def test_what_a_silent_router_did_not_use_is_divided_once_it_lapses():
    world = World(limit=9)
    first, second, third = (world.start(place) for place in range(3))
    world.talk()
    assert world.bounds("d0") == [3, 3, 3]
    assert world.admit(third, "d0")
    world.stop(("r", 2))
    world.lapse(LAPSE_SECONDS - 1)
    world.talk(2)
    assert first.shares.bound("d0") == 3, "not yet"
    world.lapse()
    world.talk(2)
    assert first.shares.bound("d0") + second.shares.bound("d0") == 8, "one sequence may still run"
    world.lapse(HELD_SECONDS)
    world.talk(2)
    assert first.shares.bound("d0") + second.shares.bound("d0") == 9


@pytest.mark.parametrize("deadlines", [False, None])
def test_nobody_lapses_where_engines_may_pull_late(deadlines):
    world = World(limit=6)
    first, _ = world.start(0), world.start(1)
    world.talk()
    world.stop(("r", 1))
    for _ in range(60):
        world.clock += 1
        first.shares.set_addresses([("r", 1)], [("r", 1)])
        first.shares.pass_time(world.clock, deadlines=deadlines)
    assert first.shares.bound("d0") == 3
    first.shares.pass_time(world.clock, deadlines=True)
    assert first.shares.bound("d0") == 6
    first.shares.pass_time(world.clock, deadlines=None)
    assert first.shares.bound("d0") == 6, "an engine that is new denies nothing"
    first.shares.pass_time(world.clock, deadlines=False)
    assert first.shares.bound("d0") == 3, "an engine that pulls late came"


def test_a_router_that_was_stopped_begins_anew():
    world = World(limit=6)
    first, second = world.start(0), world.start(1)
    world.talk()
    world.stop(("r", 1))
    world.lapse()
    world.fill(first, "d0")
    assert first.flights["d0"] == 6
    world.wake(("r", 1))
    assert not world.admit(second, "d0"), "its share was divided"
    assert second.shares.awaited == ["r:0"]
    world.talk()
    assert not world.admit(second, "d0"), "the first one has all of it in use"
    first.flights["d0"] = 2
    world.talk()
    assert world.bounds("d0") == [3, 3]


def test_a_router_that_reads_of_a_view_without_it_begins_anew():
    world = World(limit=6)
    first, second = world.start(0), world.start(1)
    world.talk()
    for _ in range(20):  # both run, and neither hears the other
        world.clock += 1
        first.shares.set_addresses([("r", 1)], [("r", 1)])
        for node in (first, second):
            node.shares.pass_time(world.clock, deadlines=True)
    assert world.bounds("d0") == [6, 3], "nothing can be done about that: engines refuse late pulls"
    world.fill(first, "d0")
    world.ask(("r", 1), ("r", 0))
    while world.letters:
        world.step(world.letters[0])
    assert not world.admit(second, "d0")
    world.talk()
    assert not world.admit(second, "d0")
    first.flights.clear()
    world.talk()
    assert world.bounds("d0") == [3, 3]


def test_a_newcomer_beside_a_silent_router_gets_its_part():
    world = World(limit=6)
    world.start(0)
    world.talk()
    world.stop(("r", 0))
    second = world.start(1)
    world.lapse(LAPSE_SECONDS - 1)
    assert second.shares.bound("d0") == 0
    assert second.shares.awaited == ["r:0"]
    world.lapse()
    assert second.shares.bound("d0") == 3, "it may have its even part in flight"
    third = world.start(2)
    world.lapse()
    world.talk()
    assert [node.shares.bound("d0") for node in (second, third)] == [2, 2]
    world.lapse(HELD_SECONDS)
    world.talk()
    assert [node.shares.bound("d0") for node in (second, third)] == [3, 3]


def test_newcomers_are_told_what_a_lapsed_router_had():
    world = World(limit=8)
    first, second = world.start(0), world.start(1)
    world.talk()
    assert world.admit(second, "d0", 2)
    world.stop(("r", 1))
    world.lapse()
    third = world.start(2)
    world.lapse()
    world.talk()
    assert [node.shares.bound("d0") for node in (first, third)] == [3, 3]
    assert [node.shares.bound("d1") for node in (first, third)] == [4, 4]


def test_a_router_that_begins_is_not_held_up_for_one_that_never_ran():
    world = World(limit=6)
    first = world.start(0)
    world.talk()
    first.shares.set_addresses([("r", 7)], [("r", 7)])
    for _ in range(60):
        world.clock += 1
        first.shares.silent(("r", 7), "does not answer")
        first.shares.pass_time(world.clock, deadlines=True)
    assert first.shares.bound("d0") == 6


def test_a_router_that_leaves_gives_everything_but_what_waits():
    world = World(limit=12)
    nodes = [world.start(place) for place in range(3)]
    world.talk()
    assert world.admit(nodes[0], "d0", 1)
    nodes[0].shares.give(flights(nodes[0]), 1, leaving=True)
    world.talk(2)
    assert world.bounds("d0") == [2, 5, 5]
    assert given_up("a", {"a": 5, "b": 0, "c": 9}, 0) == {"b": 3, "c": 2}
    assert given_up("a", {"a": 2, "b": 0}, 3) == given_up("a", {"a": 2}, 0) == {}


def test_a_router_that_ends_knows_who_believes_it_busy():
    world = World(limit=4)
    here, other = (world.start(place) for place in range(2))
    world.talk()
    assert not here.shares.believed_busy(world.clock)
    assert world.admit(here, "d0", 1)
    assert not here.shares.believed_busy(world.clock), "nobody has asked since"
    world.talk(1)
    assert here.shares.believed_busy(world.clock)
    assert not other.shares.believed_busy(world.clock)
    assert not here.shares.believed_busy(world.clock + 60), "it is silent, and may never ask again"
    here.flights["d0"] = 0
    assert here.shares.believed_busy(world.clock), "nobody has asked since"
    here.shares.report("a stranger", flights(here), 0)
    assert here.shares.believed_busy(world.clock)
    world.talk(1)
    assert not here.shares.believed_busy(world.clock)


@pytest.mark.parametrize(("admitted", "kept"), [(0, 2), (4, 4), (8, 8), (9, 8)])
def test_a_place_that_is_reserved_is_not_given_away(admitted, kept):
    world = World(limit=8)
    idle, busy = (world.start(place) for place in range(2))
    world.talk()
    for engine in ENGINES:
        assert world.admit(busy, engine, 4)
    world.talk(2)
    for _ in range(10):
        idle.shares.give(flights(idle), 0, admitted=admitted)
        world.talk(1)
    assert sum(idle.shares.bound(engine) for engine in ENGINES) >= kept


def test_room_moves_to_where_the_demand_is():
    world = World(limit=8)
    for place in range(4):
        world.start(place)
    world.talk()
    for place in (1, 3):
        busy = world.nodes["r", place]
        world.lend(busy, 40)
        assert all(busy.flights[engine] >= 5 for engine in ENGINES), busy.flights
        busy.flights.clear()


def test_a_router_that_tells_of_a_term_far_ahead_does_not_lead_the_others_there():
    """They would go beyond what can be read, and understand each other no more."""
    world = World(limit=9)
    here, other, odd = (world.start(place) for place in range(3))
    world.talk()
    term = here.shares.term
    for node in (here, other):
        (address, known) = next(
            (address, peer.report)
            for address, peer in node.shares.peers.items()
            if peer.report.router == odd.shares.router
        )
        node.shares.heard(address, known._replace(seq=known.seq + 1, term=1 << 52), world.clock)
        assert node.shares.term == term
        assert "term" in node.shares.peers[address].problem
    world.limit = 6
    world.talk()
    assert not here.shares.awaited, "it is believed again as soon as it tells of one that may be"
    assert world.bounds("d0") == [2, 2, 2]


def test_what_routers_gave_each_other_ends_with_the_term():
    world = World(limit=16)
    here, other = (world.start(place) for place in range(2))
    world.talk()
    for busy in (other, here, other, here):
        world.lend(busy)
        busy.flights.clear()
    assert world.bounds("d0") == [15, 1]
    world.blip(("r", 1))
    assert world.bounds("d0") == [15, 1], "nobody has heard of the new term yet"
    world.hear(("r", 0), ("r", 1))
    assert world.bounds("d0") == [8, 1], "here is in the new term, and the other one does not know"
    world.hear(("r", 1), ("r", 0))
    assert world.bounds("d0") == [8, 8]


def test_of_two_terms_of_one_view_the_higher_one_holds():
    world = World(limit=6)
    here, other = (world.start(place) for place in range(2))
    world.talk()
    for _ in range(3):
        world.blip(("r", 1))
    terms = here.shares.term, other.shares.term
    world.hear(("r", 1), ("r", 0))
    assert (here.shares.term, other.shares.term) == terms, "a lower term changes nothing"
    assert other.shares.awaited == ["r:0"]
    world.talk(1)
    assert here.shares.term == other.shares.term == terms[1]
    assert world.bounds("d0") == [3, 3]


def test_what_was_lent_on_is_missing_until_everybody_knows():
    world = World(limit=12)
    here, lender, borrower = nodes = [world.start(place) for place in range(3)]
    world.talk()
    for giver, busy in ((lender, here), (here, borrower)):
        world.fill(busy, "d0")
        world.talk(1)
        giver.shares.give(flights(giver), 0)
        world.talk(1)
        busy.flights.clear()
    assert world.bounds("d0") == [2, 2, 8]
    world.blip(("r", 0))  # the lender takes back what it gave here, and the borrower has heard nothing
    world.blip(("r", 1))
    world.hear(("r", 1), ("r", 0))
    world.hear(("r", 1), ("r", 2))
    world.use_up(*nodes)
    assert world.bounds("d0") == [4, 4, 4]


@pytest.mark.parametrize("forgets", [False, True])
def test_a_place_that_was_borrowed_and_lent_on_is_owed(forgets):
    world = World(limit=6)
    here, lender, borrower = (world.start(place) for place in range(3))
    world.talk()
    for giver in (lender, here):
        giver.shares.give(flights(giver), 0, leaving=True)
        world.talk(1)
    assert world.bounds("d0") == [0, 0, 6]
    world.clock += STOPPED_SECONDS + 1 if forgets else 0
    here.shares.awake(world.clock)
    world.blip(("r", 0))
    world.blip(("r", 1))
    world.hear(("r", 1), ("r", 0))
    world.hear(("r", 1), ("r", 2))
    world.use_up(borrower, lender, here)
    assert world.bounds("d0") == [2, 2, 2]


def test_nobody_lends_to_a_router_that_leaves():
    world = World(limit=12)
    leaving, busy, idle = (world.start(place) for place in range(3))
    world.talk()
    for engine in ENGINES:
        assert world.admit(leaving, engine, 4)
        assert world.admit(busy, engine, 1)
    for _ in range(20):
        for node in world.nodes.values():
            node.shares.give(flights(node), 0, leaving=node is leaving)
        world.talk(1)
        assert leaving.shares.bound("d0") == 4
    assert busy.shares.bound("d0") >= 3
    assert idle.shares.bound("d0") >= 3
    assert not idle.shares.report(leaving.shares.router, flights(idle), 0).granted


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
