"""What is active after a set was rolled back, and after the model changed."""

from datetime import timedelta

import pytest

from eldr_operator.locality.activation import decide
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, ago, make_cr, make_fit, make_set, router


def test_a_set_that_was_rolled_back_gives_way_to_the_one_before():
    fits = [make_fit("a", finished="2026-11-21T10:00:00Z"), make_fit("b", finished="2026-11-21T11:00:00Z")]
    table = Table(epoch=2, active=make_set("b"), previous=make_set("a"), activated_at=ago(600))
    blocked = ("sha256:b",)
    staged = decide(make_cr(), fits, table, [router(active="b")], NOW, blocked=blocked).table
    assert staged.staged == make_set("a")
    back = decide(make_cr(), fits, staged, [router(active="b", staged="a")], NOW, blocked=blocked).table
    assert (back.epoch, back.active, back.reason) == (3, make_set("a"), "RolledBack")
    still = decide(make_cr(), fits, back, [router(active="a")], NOW, blocked=blocked)
    assert still.table == back, "though b is newer"
    fits.append(make_fit("c", finished="2026-11-21T11:30:00Z"))
    newer = decide(make_cr(), fits, back, [router(active="a")], NOW, blocked=blocked)
    assert newer.table.staged == make_set("c")


@pytest.mark.parametrize(
    ("previous", "blocked"),
    [(None, ()), ("a", ("sha256:a",)), ("three", ())],
    ids=["none", "blocked", "other k"],
)
def test_without_another_set_none_serves(previous, blocked):
    before = make_set(previous, 3 if previous == "three" else 2) if previous else None
    table = Table(epoch=2, active=make_set("b"), previous=before, activated_at=ago(600))
    blocked = (*blocked, "sha256:b")
    found = decide(make_cr(), [make_fit("b")], table, [router(active="b")], NOW, blocked=blocked)
    assert found.table == Table(epoch=3, activated_at=NOW, reason="RolledBack")
    assert (
        decide(make_cr(), [make_fit("b")], found.table, [router()], NOW, blocked=blocked).table == found.table
    )
    pinned = decide(
        make_cr(centroids={"pin": "b"}), [make_fit("b")], table, [router(active="b")], NOW, blocked=blocked
    )
    assert pinned.table == table, "a person has chosen it"


def test_another_model_takes_its_set_along():
    fit = make_fit("a")
    fit = fit.model_copy(update={"status": fit.status | {"model": "before"}})
    table = Table(epoch=2, active=make_set("a"), activated_at=ago(600))
    found = decide(make_cr(), [fit], table, [router(active="a")], NOW).table
    assert (found.epoch, found.active, found.reason) == (3, None, "ModelChanged")


def follow(cr, fits, table, router, now, blocked):
    """Let a router do as it is told until nothing changes."""
    seen = []
    for second in range(10):
        held = {
            "active": table.active.fit if table.active else "",
            "staged": table.staged.fit if table.staged else "",
        }
        decision = decide(cr, fits, table, [router(**held)], now + timedelta(seconds=second), blocked=blocked)
        table = decision.table
        seen.append(table.active and table.active.fit)
    return table, seen


def test_older_sets_never_come_back_through_a_roll_back():
    fits = [
        make_fit(name, finished=f"2026-11-{day}T10:00:00Z") for name, day in (("a", 11), ("b", 19), ("c", 20))
    ]
    table = Table(epoch=3, active=make_set("c"), previous=make_set("b"), activated_at=ago(600))
    after, seen = follow(make_cr(), fits, table, router, NOW, ("sha256:b", "sha256:c"))
    assert (after.active, after.reason, set(seen)) == (None, "RolledBack", {None})
    # the one before serves again; another that was made between them was never in use
    table = Table(epoch=3, active=make_set("c"), previous=make_set("a"), activated_at=ago(600))
    after, _ = follow(make_cr(), fits, table, router, NOW, ("sha256:c",))
    assert (after.active, after.reason, after.epoch) == (make_set("a"), "RolledBack", 4)
    fits.append(make_fit("d", finished=(NOW + timedelta(minutes=1)).isoformat()))
    after, _ = follow(make_cr(), fits, after, router, NOW + timedelta(minutes=2), ("sha256:c",))
    assert after.active == make_set("d")


def test_a_set_of_that_number_from_long_ago_does_not_follow_one_that_was_rolled_back():
    fits = [
        make_fit("old", finished="2026-08-01T10:00:00Z", k=3),
        make_fit("two", finished="2026-11-19T10:00:00Z"),
        make_fit("three", finished="2026-11-20T10:00:00Z", k=3),
    ]
    table = Table(epoch=5, active=make_set("three", 3), previous=make_set("two"), activated_at=ago(600))
    after, seen = follow(make_cr(decode={"replicas": 3}), fits, table, router, NOW, ("sha256:three",))
    assert (after.active, after.reason, set(seen)) == (None, "RolledBack", {None})


def test_a_model_that_comes_back_gets_a_new_fit():
    table = Table(epoch=5, activated_at=ago(86400 * 30), reason="ModelChanged")
    after, _ = follow(make_cr(), [make_fit("a", finished="2026-10-01T10:00:00Z")], table, router, NOW, ())
    assert after == table
