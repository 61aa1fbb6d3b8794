"""A router that falls silent: its requests still count, but no longer say which engines to leave alone."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL, ROLE_DECODE, ROLE_PREFILL
from eldr.wire import ExpertCounts
from eldr_router.plan import loads
from eldr_router.plan.shares import Shares
from eldr_router.plan.signature import Signature
from eldr_router.plan.spec import EndpointSpec
from eldr_router.plan.split import Report, View
from eldr_router.plan.table import Intent, make_table
from eldr_router.state.endpoint import Lease
from eldr_router.state.placer import Placer
from eldr_router.state.registry import Registry

LIMIT = 256
AT, ALIAS, THIRD = ("b", 1), ("b", 2), ("c", 1)
SIGNATURE = Signature(
    ExpertCounts(np.array([[500, 500, 0, 0]], dtype=np.uint16), top_k=1, tokens=500, exact=True)
)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def tell(registry, address, router, *, decode=(), prefill=(), seq=1, members="ab"):
    """Let a router say what it has in flight."""
    view = View(tuple(members), LIMIT)
    in_flight = {f"d{at}": count for at, count in enumerate(decode)}
    rights = {engine: view.share(router, engine) for engine in in_flight}
    report = Report(router, seq, view, registry.shares.term, in_flight, rights, {}, {}, 0)
    report = report._replace(prefill={f"p{at}": count for at, count in enumerate(prefill)})
    registry.shares.heard(address, report, registry._clock())


def make(*addresses, engines=2):
    registry = Registry(Clock(), Shares("a", LIMIT))
    for role, letter in ((ROLE_DECODE, "d"), (ROLE_PREFILL, "p")):
        registry.replace(role, [EndpointSpec(role, f"{letter}{at}", letter, at, at) for at in range(engines)])
    registry.shares.set_addresses(addresses)
    return registry


def heard_once(decode=(40, 0), prefill=(), engines=2):
    registry = make(AT, engines=engines)
    for seq in (1, 2):
        tell(registry, AT, "b", decode=decode, prefill=prefill, seq=seq)
    return registry


def engines_of(registry, policy, n=40):
    placer = Placer(registry, np.random.default_rng(0))
    placer.locality.follow(None, wanted=policy == POLICY_MARGINAL)
    table = make_table(Intent(policy=policy), epoch=0, active=None, centroids=None)
    return Counter(placer.place(table, SIGNATURE).endpoint.name for _ in range(n))


@pytest.mark.parametrize("policy", ["JSQ", POLICY_MARGINAL, POLICY_ELDR, "PowerOfTwo"])
def test_old_news_of_a_silent_router_crowd_no_engine(policy):
    registry = heard_once()
    registry._clock.now += 3600
    registry.shares.silent(AT, "does not answer")
    assert engines_of(registry, policy) == pytest.approx({"d0": 20, "d1": 20}, abs=6)


@pytest.mark.parametrize("policy", ["JSQ", POLICY_MARGINAL])
def test_fresh_news_rank_engines(policy):
    registry = heard_once()
    registry._clock.now += 1.9
    assert engines_of(registry, policy)["d1"] >= 36


def test_what_a_silent_router_has_stays_counted_and_its_part_stays_its_own():
    registry = heard_once((7, 0, 2), engines=3)
    decode = registry.endpoints(ROLE_DECODE)
    bounds = [registry.bound(engine, LIMIT) for engine in decode]
    assert registry.totals(decode) == [7, 0, 2]
    registry._clock.now += 2.1
    assert registry.totals(decode) == [3, 3, 3]
    assert registry.totals(decode[:1]) == [3], "the mean is that of the pool, whoever is asked about"
    assert [registry.bound(engine, LIMIT) for engine in decode] == bounds == [128] * 3
    tell(registry, AT, "b", decode=(0, 1, 0), seq=3)
    assert registry.totals(decode) == [0, 1, 0], "it is back"


def test_prefill_engines_are_ranked_likewise():
    registry = heard_once(prefill=(6, 0))
    prefill = registry.endpoints(ROLE_PREFILL)
    assert registry.totals(prefill) == [6, 0]
    registry._clock.now += 2.1
    assert registry.totals(prefill) == [3, 3]


def test_one_router_falls_silent_beside_another_that_does_not():
    registry = make(AT, THIRD)
    tell(registry, AT, "b", decode=(8, 0), members="abc")
    registry._clock.now += 2.1
    tell(registry, THIRD, "c", decode=(0, 5), members="abc")
    assert registry.totals(registry.endpoints(ROLE_DECODE)) == [4, 9]


def test_a_router_with_two_addresses_is_silent_only_at_both():
    registry = make(AT, ALIAS)
    tell(registry, ALIAS, "b", decode=(8, 0))
    registry._clock.now += 2.1
    tell(registry, AT, "b", decode=(0, 6), seq=2)
    assert registry.totals(registry.endpoints(ROLE_DECODE)) == [0, 6]


def test_a_silent_router_keeps_nobody_busy():
    registry = heard_once()
    assert registry.is_busy
    registry._clock.now += 2.1
    assert not registry.is_busy, "the others need not be asked fifty times a second for its sake"


counts = st.dictionaries(st.sampled_from(["d0", "d1", "d2", "gone"]), st.integers(0, 300))


@pytest.mark.slow
@given(
    own=st.lists(st.integers(0, 300), min_size=3, max_size=3), fresh=st.lists(counts), silent=st.lists(counts)
)
def test_silent_routers_never_change_the_order_nor_the_load(own, fresh, silent):
    pool = ["d0", "d1", "d2"]
    without = loads.totals(own, pool, fresh, [], pool)
    with_them = loads.totals(own, pool, fresh, silent, pool)
    assert len({after - before for after, before in zip(with_them, without, strict=True)}) == 1
    theirs = sum(one.get(name, 0) for one in silent for name in pool)
    assert sum(with_them) - sum(without) == pytest.approx(theirs, abs=len(pool) / 2)


def heard_of_three(third=(0, 0)):
    """Return one of three routers that have their shares."""
    registry = make(AT, THIRD)
    for seq in (1, 2):
        tell(registry, AT, "b", decode=(0, 0), seq=seq, members="abc")
        tell(registry, THIRD, "c", decode=third, seq=seq, members="abc")
    return registry


def fill(registry):
    """Use all that this router may have."""
    for endpoint in registry.endpoints(ROLE_DECODE):
        Lease(endpoint, registry.bound(endpoint, LIMIT))


def test_room_of_a_router_that_fell_silent_is_not_expected():
    registry = heard_once(decode=(0, 0))
    fill(registry)
    assert registry.expects_room(LIMIT)
    registry._clock.now += loads.STALE_SECONDS + 0.1
    assert not registry.expects_room(LIMIT)
    tell(registry, AT, "b", decode=(0, 0), seq=3)
    assert registry.expects_room(LIMIT)


def test_room_that_a_router_left_behind_is_not_expected():
    registry = heard_of_three(third=(200, 200))
    registry.shares.set_addresses([AT])  # its requests may run on for minutes
    for seq in (3, 4):
        tell(registry, AT, "b", decode=(27, 27), seq=seq)
    fill(registry)
    assert [endpoint.in_flight for endpoint in registry.endpoints(ROLE_DECODE)] == [28, 28]
    assert not registry.expects_room(LIMIT)
    tell(registry, AT, "b", decode=(10, 27), seq=5)
    assert registry.expects_room(LIMIT)


def test_no_room_is_expected_while_somebody_silent_must_confirm_it():
    registry = make(AT, THIRD)
    for seq in (1, 2):
        tell(registry, AT, "b", decode=(0, 0), seq=seq)
    assert registry.expects_room(LIMIT), "the third one has just been asked"
    registry.shares.silent(THIRD, "timeout")
    assert not registry.expects_room(LIMIT)
    registry.shares.refused(THIRD)
    tell(registry, AT, "b", decode=(0, 0), seq=3)
    assert not registry.shares.awaited
    fill(registry)
    assert registry.expects_room(LIMIT)


def test_who_has_just_gone_is_waited_for_and_who_is_silent_for_long_is_not():
    registry = heard_of_three()
    registry.shares.silent(THIRD, "timeout")
    registry.shares.set_limit(LIMIT - 1)  # what it must confirm, too
    assert registry.shares.awaited == ["b:1", "c:1"]
    assert registry.expects_room(LIMIT - 1)
    registry._clock.now += loads.STALE_SECONDS + 0.1
    assert not registry.expects_room(LIMIT - 1)
