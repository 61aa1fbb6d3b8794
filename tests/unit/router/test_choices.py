"""The registry, placement: decisions without I/O."""

from collections import Counter

import numpy as np
import pytest

from eldr.centroids import CentroidSet
from eldr.contract import POLICY_ELDR, ROLE_DECODE, ROLE_PREFILL
from eldr.wire import ExpertCounts
from eldr_router.engines.endpoint import Occupancy
from eldr_router.engines.load import Load
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.http.errors import RouterError
from eldr_router.placement.placer import Placer
from eldr_router.placement.signature import NO_SIGNATURE, WHOLE, Signature, read_signature
from eldr_router.placement.table import RoutingDocument, make_table


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def decode(n: int, slots=None) -> list[EndpointSpec]:
    return [EndpointSpec(ROLE_DECODE, f"d{i}", "h", i, i if slots is None else slots[i]) for i in range(n)]


def test_leases_and_replacement():
    registry = Registry(Clock())
    registry.replace(ROLE_DECODE, decode(2))
    first, second = registry.endpoints(ROLE_DECODE)
    lease = Occupancy(first)
    assert registry.totals([first, second]) == [1, 0]
    registry.replace(ROLE_DECODE, decode(3)[1:])
    assert registry.endpoints(ROLE_DECODE)[0] is second, "an engine that stays keeps its load"
    lease.release()
    lease.release()
    assert first.in_flight == 0
    with pytest.raises(KeyError), Occupancy(second):
        assert second.in_flight == 1
        raise KeyError
    assert second.in_flight == 0


def test_ejection_backs_off_and_fails_open():
    clock = Clock()
    registry = Registry(clock)
    registry.replace(ROLE_DECODE, decode(2))
    first, second = registry.endpoints(ROLE_DECODE)
    waits = []
    for _ in range(7):
        first.health.eject(clock.now)
        first.health.eject(clock.now)  # a second one on its way does not double the wait
        assert registry.healthy_or_all(ROLE_DECODE) == [second]
        start = clock.now
        while not registry.is_healthy(first):
            clock.now += 0.5
        waits.append(clock.now - start)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    first.health.eject(clock.now)
    second.health.eject(clock.now)
    assert registry.healthy_or_all(ROLE_DECODE) == [first, second], "better a doubtful engine than none"
    assert registry.healthy_or_all(ROLE_DECODE, {first}) == [second]
    first.health.answered()
    assert registry.healthy_or_all(ROLE_DECODE) == [first]


def test_a_report_tells_what_others_have_in_flight():
    registry = Registry(Clock())
    registry.replace(ROLE_DECODE, decode(2))
    first, second = registry.endpoints(ROLE_DECODE)
    leases = [Occupancy(first), Occupancy(first)]
    first.report(Load(5, 8), 100.0)
    assert registry.totals([first, second]) == [5, 0]
    leases.append(Occupancy(first))
    assert registry.totals([first]) == [6], "its own since then count at once"
    leases[0].release()
    first.report(Load(1, 8), 101.0)
    assert registry.totals([first]) == [2], "two are on their way to it"
    for lease in leases:
        lease.release()
    assert registry.totals([first]) == [0]
    registry.set_peers([("b", 1), ("c", 1)])
    leases = [Occupancy(second), Occupancy(first)]
    assert registry.totals([first, second]) == [1, 3], "of one that reports nothing others have as many"
    second.report(Load(1, 8), 102.0)
    second.report(None, 103.0)
    assert (second.load, registry.totals([second])) == (None, [3])
    del leases


@pytest.mark.parametrize(
    ("reported", "limit", "bound"), [(8, 4, 4), (3, 4, 3), (None, 4, 1), (None, 9, 3), (None, 2, 1)]
)
def test_up_to_how_many_an_engine_gets_requests(reported, limit, bound):
    registry = Registry(Clock())
    registry.replace(ROLE_DECODE, decode(1))
    registry.set_peers([("b", 1), ("c", 1)])
    (engine,) = registry.endpoints(ROLE_DECODE)
    if reported is not None:
        engine.report(Load(0, reported), 100.0)
    assert registry.concurrency_limit(engine, limit) == bound
    leases = []
    while registry.with_free_slots([engine], limit):
        leases.append(Occupancy(engine))
    assert len(leases) == bound


def test_an_engine_without_a_report_is_split_evenly_and_the_refusal_says_so():
    registry = Registry(Clock())
    registry.replace(ROLE_DECODE, decode(1))
    registry.set_peers([("b", 1)])
    held = [registry.admit(4), registry.admit(4)]
    with pytest.raises(
        RouterError, match="d0: no load is reported, so that 2 routers split the limit evenly"
    ):
        registry.admit(4)
    registry.set_peers([])
    held.append(registry.admit(4))
    registry.endpoints(ROLE_DECODE)[0].report(Load(0, 9), 100.0)
    held.append(registry.admit(4))
    with pytest.raises(RouterError, match=r"full \(max_in_flight=4\); retry"):
        registry.admit(4)
    for each in held:
        each.release()


def test_a_router_is_busy_while_requests_come():
    registry = Registry(clock := Clock())
    registry.replace(ROLE_DECODE, decode(1))
    assert not registry.has_recent_traffic
    registry.admit(1).release()
    assert registry.has_recent_traffic
    clock.now += 5
    assert not registry.has_recent_traffic
    lease = Occupancy(registry.endpoints(ROLE_DECODE)[0])
    assert registry.has_recent_traffic
    lease.release()


def test_an_engine_that_changes_its_slot_keeps_its_load():
    registry = Registry(Clock())
    registry.replace(ROLE_DECODE, decode(1))
    Occupancy(registry.endpoints(ROLE_DECODE)[0])
    registry.replace(ROLE_DECODE, decode(1, slots=[7]))
    (endpoint,) = registry.endpoints(ROLE_DECODE)
    assert (endpoint.spec.slot, endpoint.in_flight) == (7, 1)


def unit(rows):
    rows = np.asarray(rows, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def centroid_set(centers) -> CentroidSet:
    return CentroidSet(
        model="m",
        n_layers=1,
        n_experts=4,
        top_k=1,
        kept=(0,),
        weighting="counts",
        weights=np.ones((1, 4), dtype=np.float32),
        centers=unit(centers),
        samples=1,
        created=0.0,
    )


def counts(*values) -> Signature:
    array = np.array([values], dtype=np.uint16)
    return Signature(ExpertCounts(array, top_k=1, tokens=int(array.sum()), exact=True))


def placer(specs):
    registry = Registry(Clock())
    registry.replace(ROLE_DECODE, specs)
    return registry, Placer(registry, np.random.default_rng(0))


def table(centers=None, **fields):
    centroids = None if centers is None else centroid_set(centers)
    document = RoutingDocument(**{"policy": POLICY_ELDR, **fields})
    return make_table(document, epoch=1, active=None, centroids=centroids)


EYE = np.eye(4)


@pytest.mark.parametrize(
    ("signature", "centers", "reason"),
    [
        (NO_SIGNATURE, EYE, "no_signature"),
        (counts(0, 0, 0, 0), EYE, "zero_vector"),
        (counts(1, 2, 3), EYE, "wrong_shape"),
        (read_signature({"v": 99}), EYE, "wire_error"),
        (read_signature(None), EYE, "no_signature"),
        (counts(1, 0, 0, 0), None, "no_centroids"),
        (WHOLE, EYE, "whole"),
    ],
)
def test_failing_soft_to_the_shortest_queue(signature, centers, reason):
    _, place = placer(decode(4))
    placements = [place.place(table(centers), signature) for _ in range(8)]
    assert {(p.policy, p.reason, p.similarity, p.n_candidates) for p in placements} == {
        ("JSQ", reason, None, 4)
    }
    assert sorted(Counter(p.endpoint.name for p in placements).values()) == [2, 2, 2, 2]


def test_another_policy_needs_no_reason_to_fail():
    _, place = placer(decode(4))
    got = place.place(table(EYE, policy="RoundRobin"), counts(1, 0, 0, 0))
    assert (got.policy, got.reason) == ("RoundRobin", "policy")


def test_fewer_centroids_than_engines():
    """An engine without a centroid is always a candidate: it gets what the matching one has no time for."""
    _, place = placer(decode(3))
    names = Counter(place.place(table(EYE[:2]), counts(9, 0, 0, 0)).endpoint.name for _ in range(6))
    assert names == {"d0": 3, "d2": 3}


def test_more_centroids_than_engines():
    _, place = placer(decode(2))
    assert place.place(table(EYE), counts(0, 9, 0, 0)).endpoint.name == "d1"
    assert place.place(table(EYE), counts(0, 0, 0, 9)).n_candidates == 2  # its engine does not exist


def test_slots_not_positions_decide():
    _, place = placer(decode(3, slots=[2, -1, 0]))
    got = place.place(table(EYE), counts(0, 0, 9, 0))
    assert (got.endpoint.name, got.n_candidates) in (("d0", 2), ("d1", 2))


def test_centroids_that_are_near_to_everything_do_not_crowd_their_engine():
    _, place = placer(decode(4))
    table_ = table(EYE, policy="MarginalUnion")
    place.locality.follow(table_.centroids, wanted=True)

    def engines(n):
        names = []
        for _ in range(n):
            placement = place.place(table_, counts(2, 1, 9, 3))
            placement.occupancy.release()  # every engine is idle: only centroids tell them apart
            names.append(placement.endpoint.name)
        return names

    assert set(engines(40)) == {"d2"}
    engines(200)
    later = engines(80)
    assert [later.count(f"d{at}") for at in range(4)] == pytest.approx([20] * 4, abs=3)
    place.locality.follow(table_.centroids, wanted=True)
    assert set(engines(8)) != {"d2"}, "the same set again: what was learned of it stays"
    table_ = table(EYE, policy="MarginalUnion")
    place.locality.follow(table_.centroids, wanted=True)
    assert set(engines(40)) == {"d2"}, "a new set begins anew"


def test_full_engines_are_no_candidates():
    _, place = placer(decode(2))
    limited = table(EYE, max_in_flight=2)
    names = [place.place(limited, counts(9, 0, 0, 0)).endpoint.name for _ in range(4)]
    assert names == ["d0", "d0", "d1", "d1"]
    with pytest.raises(RouterError) as full:
        place.place(limited, counts(9, 0, 0, 0))
    assert full.value.status == 429


def test_another_attempt_pays_no_toll():
    registry, place = placer(decode(3))
    marginal = table(np.eye(3, 4), policy="MarginalUnion")
    place.locality.follow(marginal.centroids, wanted=True)
    failed = place.place(marginal, counts(0, 9, 1, 0)).endpoint
    tolls = place.locality.tolls.of(range(3))
    assert any(tolls)
    again = place.place(marginal, counts(0, 9, 1, 0), {failed}, is_new=False)
    assert again.endpoint in set(registry.endpoints(ROLE_DECODE)) - {failed}
    assert place.locality.tolls.of(range(3)) == tolls


def test_two_prefill_engines_take_turns_although_decode_chooses_too():
    registry = Registry(Clock())
    turns = [(registry.turn(ROLE_PREFILL) % 2, registry.turn(ROLE_DECODE) % 2) for _ in range(4)]
    assert turns == [(1, 1), (0, 0), (1, 1), (0, 0)]
