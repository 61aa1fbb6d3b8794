"""The prior that a router learns while it places: where no centroid set is in effect, and by what others tell."""

import base64
from collections import Counter

import numpy as np
import orjson
import pytest

from eldr.centroids import CentroidSet
from eldr.contract import POLICY_MARGINAL, ROLE_DECODE
from eldr.wire import ExpertCounts
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.placement.exchange import read_answer, write_answer
from eldr_router.placement.placer import Placer
from eldr_router.placement.signature import NO_SIGNATURE, Signature
from eldr_router.placement.table import RoutingDocument, make_table

LAYERS, EXPERTS, TOP_K, TOKENS = 2, 16, 2, 200
TABLE = make_table(RoutingDocument(policy=POLICY_MARGINAL), epoch=0, active=None, centroids=None)


def specs(*names):
    return [EndpointSpec(ROLE_DECODE, name, "h", at, at) for at, name in enumerate(names)]


class Router:
    """A registry and its placer, before engines of some names."""

    def __init__(self, *names, seed=0):
        self.registry = Registry(lambda: 0.0)
        self.placer = Placer(self.registry, np.random.default_rng(seed))
        self.set(*names)
        self.placer.locality.follow(None, wanted=True)

    @property
    def locality(self):
        return self.placer.locality

    def set(self, *names):
        self.registry.replace(ROLE_DECODE, specs(*names))
        self.locality.retain(names)

    def send(self, signature, table=TABLE):
        """Place a request that ends at once, and return where it went."""
        placement = self.placer.place(table, signature)
        placement.occupancy.release()
        return placement.endpoint.name

    def send_kinds(self, rng, requests, n):
        """Send requests of n kinds in random order, and return where each kind went."""
        went = {kind: Counter() for kind in range(n)}
        for kind in rng.integers(0, n, requests).tolist():
            went[kind][self.send(request(rng, kind))] += 1
        return went


def request(rng, kind, shape=(LAYERS, EXPERTS)):
    """Return a request that mostly uses its kind's own experts."""
    chances = np.ones(shape[1])
    chances[2 * kind : 2 * kind + 3] += 12.0
    counts = rng.multinomial(TOKENS * TOP_K, chances / chances.sum(), size=shape[0]).astype(np.uint16)
    return Signature(ExpertCounts(np.minimum(counts, TOKENS), TOP_K, TOKENS, exact=False))


def test_a_popular_kind_does_not_crowd_one_engine():
    router, rng = Router("d0", "d1", "d2", "d3"), np.random.default_rng(2)
    went = Counter()
    for number in range(1200):
        engine = router.send(request(rng, 0 if rng.random() < 0.7 else int(rng.integers(1, 4))))
        went[engine] += number >= 400
    assert max(went.values()) < 2 * min(went.values())


def test_a_new_engine_is_neither_starved_nor_flooded():
    router, rng = Router("d0", "d1", "d2", "d3"), np.random.default_rng(5)
    router.send_kinds(rng, 400, 4)
    router.set("d0", "d1", "d2", "d3", "d4")
    went = Counter()
    for kind in router.send_kinds(rng, 500, 4).values():
        went += kind
    assert 30 < went["d4"] < 250, "a fifth is 100"


def test_of_engines_that_come_and_go_nothing_is_left():
    router, rng = Router("d0", "d1", "d2", "d3"), np.random.default_rng(6)
    router.send_kinds(rng, 400, 4)
    for number in range(200):
        router.set("d0", "d1", "d2", f"f{number}")
        router.send(request(rng, 0))
    assert len(router.locality.tolls._tolls) <= 4
    assert len(router.locality.profiles.table()) <= 4


def test_engines_without_a_slot_have_tolls_of_their_own():
    router, rng = Router("d0", "d1"), np.random.default_rng(7)
    router.registry.replace(
        ROLE_DECODE, [EndpointSpec(ROLE_DECODE, n, "h", at, -1) for at, n in enumerate(("d0", "d1"))]
    )
    router.send_kinds(rng, 100, 2)
    assert len(router.locality.tolls._tolls) == 2


def centroids(rng, shape=(LAYERS, EXPERTS)):
    mean = [
        np.mean([request(rng, kind).counts.counts for _ in range(30)], axis=0).reshape(-1)
        for kind in range(2)
    ]
    centers = np.array([one / np.linalg.norm(one) for one in mean], dtype=np.float32)
    ones = np.ones(shape, dtype=np.float32)
    return CentroidSet("m", *shape, TOP_K, tuple(range(shape[0])), "counts", ones, centers, 1, 0.0)


def test_fitted_centroids_are_the_prior_where_there_are_some():
    router, rng = Router("d0", "d1"), np.random.default_rng(8)
    router.send_kinds(rng, 100, 2)
    fitted = centroids(rng)
    router.locality.follow(fitted, wanted=True)
    assert router.locality.profiles is None
    assert router.locality.tolls._tolls == {}
    table = make_table(RoutingDocument(policy=POLICY_MARGINAL), epoch=1, active=None, centroids=fitted)
    for kind in (0, 1, 1, 0):
        placement = router.placer.place(table, request(rng, kind))
        placement.occupancy.release()
        assert placement.endpoint.name == f"d{kind}"
        assert placement.similarity > 0.9
    router.locality.follow(None, wanted=True)
    placement = router.placer.place(TABLE, request(rng, 0))
    assert placement.similarity is None, "of what a router learned, no cosine to a centroid is told"
    assert router.locality.profiles is not None
    assert set(router.locality.profiles.table()) <= {"d0", "d1"}


def test_requests_without_a_signature_teach_nothing():
    router, rng = Router("d0", "d1"), np.random.default_rng(9)
    router.send(request(rng, 0))
    before = {name: one.seen for name, one in router.locality.profiles.table().items()}
    for _ in range(5):
        router.send(NO_SIGNATURE)
    assert {name: one.seen for name, one in router.locality.profiles.table().items()} == before


def test_another_attempt_is_no_other_request():
    router, rng = Router("d0", "d1"), np.random.default_rng(10)
    first = router.placer.place(TABLE, request(rng, 0))
    router.placer.place(TABLE, request(rng, 0), {first.endpoint}, is_new=False).occupancy.release()
    assert sum(one.seen for one in router.locality.profiles.table().values()) == 1


def test_signatures_of_two_shapes_in_turns_keep_what_is_known():
    router, rng = Router("d0", "d1"), np.random.default_rng(11)
    router.send_kinds(rng, 40, 2)
    known = router.locality.profiles
    for _ in range(60):
        router.send(request(rng, 0))
        router.send(request(rng, 0, (LAYERS, 2 * EXPERTS)))
    assert router.locality.profiles is known
    for _ in range(30):
        router.send(request(rng, 0, (LAYERS, 2 * EXPERTS)))
    assert router.locality.profiles is not known, "another model: it begins again, as the unions do"
    assert router.locality.unions.shape.n_experts == 2 * EXPERTS


def told(router, since, of="r.1"):
    locality = router.locality
    answer = write_answer(of, locality.unions, since, locality.profiles)
    return read_answer(200, orjson.dumps(answer))


def test_what_a_router_learned_survives_the_wire():
    router, rng = Router("d0", "d1"), np.random.default_rng(12)
    router.send_kinds(rng, 50, 2)
    sent, table = told(router, 0).profiles, router.locality.profiles.table()
    assert {name: one.seen for name, one in sent.items()} == {name: one.seen for name, one in table.items()}
    for name in table:
        assert sent[name].mean == pytest.approx(table[name].mean, abs=1e-3)
    assert told(router, router.locality.unions.version).profiles == {}, "nothing is news"


def test_a_router_of_before_tells_nothing_and_may_be_told():
    old, rng = Router("d0", "d1"), np.random.default_rng(14)
    old.send(request(rng, 0))
    answer = write_answer("r.1", old.locality.unions, 0)
    assert "profiles" not in answer
    assert read_answer(200, orjson.dumps(answer)).profiles == {}


@pytest.mark.parametrize(
    "row", [{}, {"count": 0}, {"count": "x"}, {"mean": ""}, {"mean": "AAA"}, {"mean": "!"}, {"values": np.nan}, {"values": -1.0}, {"values": 9.0}, {"values": 0.0}]
)  # fmt: skip
def test_profiles_that_are_none_are_refused(row):
    router, rng = Router("d0"), np.random.default_rng(15)
    router.send(request(rng, 0))
    answer = write_answer("r.1", router.locality.unions, 0, router.locality.profiles)
    assert read_answer(200, orjson.dumps(answer)).profiles.keys() == {"d0"}
    good = answer["profiles"]["d0"]
    bad = {**good, **row} if row else {}
    if "values" in row:
        cells = np.full(LAYERS * EXPERTS, row["values"], dtype="<f2")
        bad = {**good, "mean": base64.b64encode(cells.tobytes()).decode()}
    answer["profiles"]["d0"] = bad
    with pytest.raises(ValueError, match=r"unions|literal"):
        read_answer(200, orjson.dumps(answer))
