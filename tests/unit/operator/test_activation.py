"""The table of activations: what is observed, what follows."""

from datetime import timedelta

import pytest

from eldr_operator.locality import activation
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, ago, make_cr, make_fit, make_set, router

A, B = make_fit("a"), make_fit("b", finished="2026-11-21T11:00:00Z")
OLD = make_fit("old", finished="2026-11-20T00:00:00Z")
BLOCKED = ("sha256:b",)


def table(active=None, previous=None, staged=None, *, since=5000, waits=1, **more):
    """Return a table of these sets: one active since, and one staged since so many seconds."""
    named = {"active": active, "previous": previous, "staged": staged}
    made = {name: make_set(fit) for name, fit in named.items() if fit}
    times = {"activated_at": ago(since) if active else None, "staged_at": ago(waits) if staged else None}
    return Table(**{"epoch": int(bool(active))} | made | times | more)


def decide(fits, before, *routers, now=NOW, blocked=(), unreached_since=None, **spec):
    return activation.decide(
        make_cr(**spec), fits, before, routers, now, blocked=blocked, unreached_since=unreached_since
    )


def verdict(decision):
    return f"{decision.condition.status} {decision.condition.reason}"


def test_nothing_to_activate():
    decision = decide([], Table(), router())
    assert (decision.table, verdict(decision)) == (Table(), "False LearnedPrior")
    assert not decision.is_waiting


def test_accepted_set_is_staged_first():
    decision = decide([A], Table(), router(staged="a"))
    assert decision.table == Table(staged=make_set("a"), staged_at=NOW)
    assert (verdict(decision), decision.is_waiting) == ("False Staging", True)


@pytest.mark.parametrize("reason", ["Rejected", "JobFailed", "Running", "Queued", "Pending"])
def test_only_accepted_sets_count(reason):
    assert decide([make_fit("a", reason)], Table(), router()).table == Table()


def test_all_routers_have_it():
    before = table("old", staged="a", epoch=4, since=99999)
    decision = decide([A], before, router(active="old", staged="a"), router("r1", active="a"))
    assert decision.table == table("a", "old", epoch=5, since=0, reason="Accepted")
    assert decision.acks == 1
    assert decision.is_waiting, "r0 still has to switch"
    done = decide([A], decision.table, router(active="a"))
    assert (done.table, done.acks, done.is_waiting) == (decision.table, 1, False)
    assert verdict(done) == "True Active"


@pytest.mark.parametrize(
    ("second", "age", "epoch", "expected"),
    [
        ({}, 29, 0, "False Staging"),
        ({}, 30, 1, "True Active"),
        ({"problem": "does not answer"}, 29, 0, "False Staging"),
        ({"refused": ["a"]}, 29, 0, "False Refused"),
        ({"refused": ["a"]}, 30, 1, "False Refused"),
    ],
)
def test_one_of_two_lacks_it(second, age, epoch, expected):
    decision = decide([A], table(staged="a", waits=age), router(staged="a"), router("r1", **second))
    assert (decision.table.epoch, verdict(decision), decision.is_waiting) == (epoch, expected, True)
    if epoch:
        assert decision.table.reason == "AckTimeout"


@pytest.mark.parametrize("active", ["old", None])
def test_a_set_that_all_have_refused_for_long_enough_is_given_up(active):
    before = table(active, staged="a", waits=31)
    views = router(active="old", refused=["a"]), router("r1", problem="does not answer")
    decision = decide([OLD, A], before, *views)
    assert decision.table == table(active)
    assert [*decision.refused] == ["sha256:a"]
    assert decision.refused["sha256:a"].startswith("no router can load it: router r0: ")
    assert verdict(decision) == f"{bool(active)} Refused"
    assert decision.is_waiting
    pinned = decide([OLD, A], before, *views, centroids={"pin": "a"})
    assert (pinned.table, pinned.refused, pinned.is_waiting) == (before, {}, False)
    after = decide([OLD, A], decision.table, *views, blocked=("sha256:a",))
    assert (after.table.staged, after.refused) == (None if active else make_set("old"), {})


@pytest.mark.parametrize(
    "routers",
    [
        [router(problem="does not answer")],
        [router(refused=["a"]), router("r1")],
        [router(refused=["a"]), router("r1", active="old")],
        [],
    ],
)
def test_a_set_is_not_given_up_while_a_router_may_still_load_it(routers):
    assert decide([A], table(staged="a", waits=31), *routers).refused == {}


def test_where_the_set_before_is_refused_a_roll_back_ends_with_none():
    before = table("b", "a", "a", waits=31, epoch=2)
    found = decide([A, B], before, router(active="b", refused=["a"]), blocked=BLOCKED)
    assert [*found.refused] == ["sha256:a"]
    after = decide([A, B], found.table, router(active="b", refused=["a"]), blocked=(*BLOCKED, "sha256:a"))
    assert after.table == Table(epoch=3, activated_at=NOW, reason="RolledBack")


def test_nobody_loads_it_in_time():
    before = table(staged="a", waits=31)
    decision = decide([A], before, router(problem="does not answer (ConnectError)"))
    assert (decision.table, verdict(decision)) == (before, "False AckTimeout")
    assert not decision.is_waiting


def test_without_routers_it_waits():
    before = table(staged="a", waits=1000)
    decision = decide([A], before)
    assert (decision.table, verdict(decision), decision.is_waiting) == (before, "False Staging", False)
    assert verdict(decide([A], table("a"))) == "Unknown NoReadyRouters"


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"active": "a"}, "True Active"),
        ({"active": "old"}, "False AckTimeout"),
        ({"active": "old", "age": 5}, "True Active"),
        ({"problem": "does not answer"}, "False AckTimeout"),
        ({"refused": ["a"]}, "False Refused"),
    ],
)
def test_the_active_set_is_watched(view, expected):
    decision = decide([A], table("a"), router(**view))
    assert (decision.table, verdict(decision)) == (table("a"), expected)


def test_newest_wins_and_replaces_what_is_staged():
    decision = decide([A, B], table(staged="a", waits=5), router(staged="a"))
    assert (decision.table.staged, decision.table.staged_at) == (make_set("b"), NOW)


def test_older_sets_never_replace_the_active_one():
    assert decide([A, B], table("b"), router(active="b")).table == table("b")
    assert decide([A], table("b"), router(active="b")).table == table("b"), "its EldrFit was deleted"


def test_pin_works_for_a_set_whose_fit_was_deleted():
    decision = decide([], table("b", "a"), router(active="b"), centroids={"pin": "a"})
    assert decision.table.staged == make_set("a")


@pytest.mark.parametrize(
    ("pin", "active", "expected", "text"),
    [
        ("nope", "b", "True PinNotFound", "there is no EldrFit nope here; pin one of: b"),
        ("nope", "", "False PinNotFound", "pin one of: b"),
        ("bad", "b", "True PinNotAccepted", "EldrFit bad is Rejected, not Accepted; pin one of: b"),
    ],
)
def test_pins_that_cannot_be_followed(pin, active, expected, text):
    fits = [B, make_fit("bad", "Rejected")]
    decision = decide(fits, table(active), router(active=active), centroids={"pin": pin})
    assert (decision.table, verdict(decision)) == (table(active), expected)
    assert text in decision.condition.message


def test_sets_of_another_k():
    scaled = {"decode": {"replicas": 4}}
    fits = [make_fit("two", finished="2026-11-21T11:00:00Z")]
    decision = decide(fits, table("two"), router(active="two"), **scaled)
    assert (decision.table, verdict(decision)) == (table("two"), "True KMismatch")
    fits.append(make_fit("old", k=4))
    again = decide(fits, table("two"), router(active="two"), **scaled).table
    assert again == table("two"), "it was judged on the traffic of an earlier time"
    fits.append(make_fit("four", k=4, finished="2026-11-21T11:10:00Z"))
    decision = decide(fits, table("two"), router(active="two"), **scaled)
    assert decision.table.staged == make_set("four", 4)
    fits.append(make_fit("three", k=3, finished="2026-11-21T11:30:00Z"))
    active = table().but(epoch=2, active=make_set("four", 4), activated_at=ago(60))
    assert decide(fits, active, router(active="four"), **scaled).table == active, "newer, but of another k"


def test_policy_that_ignores_centroids():
    decision = decide([A], table("a"), router(active="a"), router={"policy": "JSQ"})
    assert verdict(decision) == "False PolicyIgnoresCentroids"


def follow(fits, before, blocked, now=NOW, **spec):
    """Let a router do as it is told until nothing changes; return the last table, and which sets served."""
    seen, after = set(), before
    for second in range(10):
        held = {name: made.fit for name in ("active", "staged") if (made := getattr(after, name))}
        at = now + timedelta(seconds=second)
        after = decide(fits, after, router(**held), now=at, blocked=blocked, **spec).table
        seen.add(after.active and after.active.fit)
    return after, seen


@pytest.mark.parametrize(
    ("previous", "blocked"),
    [(None, ()), (make_set("a"), ("sha256:a",)), (make_set("three", 3), ())],
    ids=["none", "blocked", "other k"],
)
def test_without_another_set_none_serves(previous, blocked):
    before, blocked = table("b", epoch=2).but(previous=previous), (*blocked, *BLOCKED)
    none = Table(epoch=3, activated_at=NOW, reason="RolledBack")
    assert decide([B], before, router(active="b"), blocked=blocked).table == none
    assert decide([B], none, router(), blocked=blocked).table == none
    pinned = decide([B], before, router(active="b"), blocked=blocked, centroids={"pin": "b"})
    assert pinned.table == before, "a person has chosen it"


def test_another_model_takes_its_set_along():
    fit = A.model_copy(update={"status": A.status | {"model": "before"}})
    found = decide([fit], table("a", epoch=2), router(active="a")).table
    assert (found.epoch, found.active, found.reason) == (3, None, "ModelChanged")


def test_older_sets_never_come_back_through_a_roll_back():
    fits = [
        make_fit(name, finished=f"2026-11-{day}T10:00:00Z")
        for name, day in zip("abc", (11, 19, 20), strict=True)
    ]
    after, seen = follow(fits, table("c", "b", epoch=3), ("sha256:b", "sha256:c"))
    assert (after.active, after.reason, seen) == (None, "RolledBack", {None})
    # the one before serves again; another that was made between them was never in use
    after, _ = follow(fits, table("c", "a", epoch=3), ("sha256:c",))
    assert (after.active, after.reason, after.epoch) == (make_set("a"), "RolledBack", 4)
    fits.append(make_fit("d", finished=(NOW + timedelta(minutes=1)).isoformat()))
    after, _ = follow(fits, after, ("sha256:c",), NOW + timedelta(minutes=2))
    assert after.active == make_set("d")


def test_a_set_of_that_number_from_long_ago_does_not_follow_one_that_was_rolled_back():
    fits = [
        make_fit("old", finished="2026-08-01T10:00:00Z", k=3),
        make_fit("two", finished="2026-11-19T10:00:00Z"),
        make_fit("three", finished="2026-11-20T10:00:00Z", k=3),
    ]
    before = table("three", "two", epoch=5).but(active=make_set("three", 3))
    after, seen = follow(fits, before, ("sha256:three",), decode={"replicas": 3})
    assert (after.active, after.reason, seen) == (None, "RolledBack", {None})


def test_a_model_that_comes_back_gets_a_new_fit():
    before = Table(epoch=5, activated_at=ago(86400 * 30), reason="ModelChanged")
    after, _ = follow([make_fit("a", finished="2026-10-01T10:00:00Z")], before, ())
    assert after == before
