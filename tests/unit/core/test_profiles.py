"""Profiles: what each engine was sent lately, learned without a fit, shared by routers, fair to who is new."""

import math

import numpy as np
import pytest

from eldr.core.profiles import LOOK, START, YOUNG, Profiles

CELLS = 64


def kinds(n, seed=0):
    """Return requests of n kinds that share a part of their experts."""
    rng = np.random.default_rng(seed)
    base = rng.gamma(2.0, 1.0, CELLS)
    own = [base + 4.0 * rng.gamma(1.0, 1.0, CELLS) * (rng.random(CELLS) < 0.25) for _ in range(n)]

    def draw(kind):
        return rng.poisson(20.0 * own[kind]).astype(np.float32)

    return draw


def teach(profiles, draw, turns, n, shift=0):
    """Send a kind to each of n engines in turn, or to another one than its own."""
    for turn in range(turns):
        profiles.take(f"d{turn % n}", draw((turn + shift) % n))


def names(n):
    return [f"d{number}" for number in range(n)]


def test_nothing_is_known_before_the_first_request():
    assert Profiles(CELLS).similarity(np.ones(CELLS, np.float32), names(3)) is None


def test_a_request_without_experts_has_no_similarity_and_teaches_nothing():
    profiles, draw = Profiles(CELLS), kinds(1)
    profiles.take("d0", np.zeros(CELLS, np.float32))
    assert profiles.table() == {}
    profiles.take("d0", draw(0))
    assert profiles.similarity(np.zeros(CELLS, np.float32), names(2)) is None


def test_it_is_the_cosine_to_the_mean_of_the_signatures():
    profiles, draw = Profiles(CELLS, start=0), kinds(2)
    drawn = [draw(0) for _ in range(LOOK // 2)]
    for one in drawn:
        profiles.take("d0", one)
    mean = np.mean([one / np.linalg.norm(one) for one in drawn], axis=0)
    asked = draw(1)
    cosine = mean @ asked / np.linalg.norm(mean) / np.linalg.norm(asked)
    assert profiles.similarity(asked, ["d0"]) == pytest.approx([cosine], abs=1e-5)


def test_a_kind_that_moves_is_followed():
    profiles, draw = Profiles(CELLS), kinds(2)
    teach(profiles, draw, 400, 2)
    teach(profiles, draw, 4 * LOOK, 2, shift=1)
    first, second = profiles.similarity(draw(0), names(2))
    assert second > first


def test_who_returns_under_another_name_is_new_and_who_is_gone_is_forgotten():
    profiles, draw = Profiles(CELLS), kinds(4)
    teach(profiles, draw, 400, 4)
    profiles.retain(["d0", "d1", "d2"])
    assert set(profiles.table()) == {"d0", "d1", "d2"}
    asked = draw(3)
    again = profiles.similarity(asked, ["d0", "d1", "d2", "d3"])
    other = profiles.similarity(asked, ["d0", "d1", "d2", "e3"])
    assert again == other
    profiles.take("e3", draw(3))  # takes the room of the one that is gone, and nothing of its profile
    profiles.take("d3", draw(0))
    assert len(profiles.similarity(asked, ["d0", "d1", "d2", "d3", "e3"])) == 5


def test_many_that_come_and_go_take_no_room():
    profiles, draw = Profiles(CELLS), kinds(1)
    for turn in range(300):
        profiles.take(f"d{turn}", draw(0))
        profiles.retain([f"d{turn}"])
    assert len(profiles._weight) <= 2
    assert len(profiles.table()) == 1


def test_64_workers_with_one_kind_each():
    profiles, draw = Profiles(CELLS), kinds(64)
    teach(profiles, draw, 64 * 30, 64)
    right = 0
    for kind in range(64):
        scores = profiles.similarity(draw(kind), names(64))
        right += max(range(64), key=scores.__getitem__) == kind
    assert right >= 60


def test_two_routers_know_what_one_would():
    alone, draw = Profiles(CELLS), kinds(4)
    routers = [Profiles(CELLS), Profiles(CELLS)]
    for turn in range(800):
        one = draw(turn % 4)
        alone.take(f"d{turn % 4}", one)
        routers[turn // 4 % 2].take(f"d{turn % 4}", one)
        if turn % 8 == 7:
            routers[0].merge("r1", routers[1].table())
            routers[1].merge("r0", routers[0].table())
    for kind in range(4):
        asked = draw(kind)
        wanted = alone.similarity(asked, names(4))
        for router in routers:
            assert router.similarity(asked, names(4)) == pytest.approx(wanted, abs=0.02)


def test_a_router_without_traffic_holds_nobody_back():
    busy, idle, draw = Profiles(CELLS), Profiles(CELLS), kinds(2)
    teach(idle, draw, 400, 2)
    for _ in range(200):
        teach(busy, draw, 2, 2, shift=1)
        busy.merge("idle", idle.table())
    first, second = busy.similarity(draw(0), names(2))
    assert second > first


def test_what_is_heard_twice_counts_once_and_who_began_again_counts_again():
    here, there, draw = Profiles(CELLS), Profiles(CELLS), kinds(2)
    here.take("d0", draw(0))
    there.take("d0", draw(1))
    here.merge("there", there.table())
    asked = draw(1)
    before = here.similarity(asked, ["d0"])
    here.merge("there", there.table())
    assert here.similarity(asked, ["d0"]) == before
    for _ in range(5):
        there.take("d0", draw(1))
    here.merge("there", there.table())
    there.retain([])
    there.take("d0", draw(1))
    before = here.similarity(asked, ["d0"])
    here.merge("there", there.table())
    assert here.similarity(asked, ["d0"]) != before


def test_only_what_changed_is_told_and_of_many_every_eighth():
    profiles, draw = Profiles(CELLS), kinds(1)
    profiles.take("d0", draw(0), 1)
    profiles.take("d1", draw(0), 5)
    assert set(profiles.table(0)) == {"d0", "d1"}
    assert set(profiles.table(1)) == {"d1"}
    assert profiles.table(5) == {}
    told = [
        version
        for version in range(100)
        if (profiles.take("d0", draw(0), version + 10), profiles.table(version + 9))[1]
    ]
    assert len(told) == 7 + 11, "up to the eighth, then each eighth"
    assert profiles.table(5)["d0"].seen == 101, "what is told is as new as can be"


def test_a_toll_belongs_to_one_worker_only():
    profiles = Profiles(CELLS)
    first = profiles.numbers(["d0", "d1", "d2"])
    assert profiles.numbers(["d2", "d0"]) == [first[2], first[0]]
    profiles.retain(["d0", "d2"])
    again = profiles.numbers(["d0", "d1", "d2", "d3"])
    assert [again[0], again[2]] == [first[0], first[2]]
    assert len({*first, *again}) == 5


def test_a_router_that_left_may_return_under_its_name():
    here, there, draw = Profiles(CELLS), Profiles(CELLS), kinds(1)
    there.take("d0", draw(0))
    here.merge("there", there.table())
    here.forget("there")
    here.merge("there", there.table())
    (score,) = here.similarity(draw(0), ["d0"])
    assert math.isfinite(score)


def test_a_young_profile_learns_from_what_its_worker_is_sent_and_an_old_one_from_what_it_is_favoured_for():
    profiles, draw = Profiles(CELLS), kinds(2)
    learned = []
    for _ in range(2 * YOUNG):
        before = {engine: one.seen for engine, one in profiles.table().items()}
        profiles.learn("d0", "d1", draw(0))
        (changed,) = [w for w, one in profiles.table().items() if one.seen != before.get(w)]
        learned.append(changed)
    own = YOUNG - START
    assert learned == ["d1"] * own + ["d0"] * (2 * YOUNG - own)
    profiles.learn(None, "d1", draw(1))
    assert profiles.table()["d1"].seen == own + 1, "nobody is favoured"
