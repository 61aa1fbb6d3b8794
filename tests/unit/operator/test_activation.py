"""The table of activations: what is observed, what follows."""

import pytest

from eldr_operator.locality.activation import decide
from eldr_operator.locality.router_view import RouterPod, RouterView
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, ago, make_cr, make_fit, make_set, router


def verdict(decision):
    return decision.condition.status, decision.condition.reason


def test_nothing_to_activate():
    decision = decide(make_cr(), [], Table(), [router()], NOW)
    assert decision.table == Table()
    assert verdict(decision) == ("False", "LearnedPrior")
    assert not decision.is_waiting


def test_a_router_that_cannot_follow_the_table_is_named():
    decision = decide(make_cr(), [], Table(), [router(), router("r1", complaint="policy: unknown")], NOW)
    assert verdict(decision) == ("False", "RouterComplaint")
    assert "r1: policy: unknown" in decision.condition.message


def test_accepted_set_is_staged_first():
    decision = decide(make_cr(), [make_fit("a")], Table(), [router(staged="a")], NOW)
    assert decision.table == Table(staged=make_set("a"), staged_at=NOW)
    assert verdict(decision) == ("False", "Staging")
    assert decision.is_waiting


@pytest.mark.parametrize("reason", ["Rejected", "JobFailed", "Running", "Queued", "Pending"])
def test_only_accepted_sets_count(reason):
    assert decide(make_cr(), [make_fit("a", reason)], Table(), [router()], NOW).table == Table()


def test_all_routers_have_it():
    table = Table(
        epoch=4, active=make_set("old"), staged=make_set("a"), staged_at=ago(1), activated_at=ago(99999)
    )
    routers = [router("r0", active="old", staged="a"), router("r1", active="a")]
    decision = decide(make_cr(), [make_fit("a")], table, routers, NOW)
    assert decision.table == Table(
        epoch=5, active=make_set("a"), previous=make_set("old"), activated_at=NOW, reason="Accepted"
    )
    assert decision.acks == 1
    assert decision.is_waiting, "r0 still has to switch"
    done = decide(make_cr(), [make_fit("a")], decision.table, [router(active="a")], NOW)
    assert (done.table, done.acks, done.is_waiting) == (decision.table, 1, False)
    assert verdict(done) == ("True", "Active")


@pytest.mark.parametrize(
    ("second", "age", "epoch", "expected", "waiting"),
    [
        ({}, 29, 0, ("False", "Staging"), True),
        ({}, 30, 1, ("True", "Active"), True),
        ({"problem": "does not answer"}, 29, 0, ("False", "Staging"), True),
        ({"refused": ["a"]}, 29, 0, ("False", "Refused"), True),
        ({"refused": ["a"]}, 30, 1, ("False", "Refused"), True),
    ],
)
def test_one_of_two_lacks_it(second, age, epoch, expected, waiting):
    table = Table(staged=make_set("a"), staged_at=ago(age))
    decision = decide(make_cr(), [make_fit("a")], table, [router(staged="a"), router("r1", **second)], NOW)
    assert decision.table.epoch == epoch
    assert verdict(decision) == expected
    assert decision.is_waiting == waiting
    if epoch:
        assert decision.table.reason == "AckTimeout"


def test_refused_by_all():
    table = Table(
        epoch=1, active=make_set("old"), staged=make_set("a"), staged_at=ago(1), activated_at=ago(5000)
    )
    fits = [make_fit("old", finished="2026-11-20T00:00:00Z"), make_fit("a")]
    decision = decide(make_cr(), fits, table, [router(active="old", refused=["a"])], NOW)
    assert decision.table == table
    assert verdict(decision) == ("True", "Refused")
    assert decision.condition.message == "the set of EldrFit a cannot be loaded: router r0: shape differs"
    assert decision.is_waiting
    assert not decision.refused


@pytest.mark.parametrize("active", ["old", None])
def test_a_set_that_all_have_refused_for_long_enough_is_given_up(active):
    before = {"epoch": 1, "active": make_set("old"), "activated_at": ago(5000)} if active else {}
    table = Table(**before, staged=make_set("a"), staged_at=ago(31))
    fits = [make_fit("old", finished="2026-11-20T00:00:00Z"), make_fit("a")]
    views = [router(active="old", refused=["a"]), router("r1", problem="does not answer")]
    decision = decide(make_cr(), fits, table, views, NOW)
    assert decision.table == Table(**before)
    assert [*decision.refused] == [make_set("a").digest]
    assert decision.refused[make_set("a").digest].startswith("no router can load it: router r0: ")
    assert verdict(decision) == ("True" if active else "False", "Refused")
    assert decision.is_waiting
    pinned = decide(make_cr(centroids={"pin": "a"}), fits, table, views, NOW)
    assert (pinned.table, pinned.refused, pinned.is_waiting) == (table, {}, False)
    after = decide(make_cr(), fits, decision.table, views, NOW, blocked=("sha256:a",))
    assert (after.table.staged, after.refused) == (None if active else make_set("old"), {})


@pytest.mark.parametrize("others", [{"problem": "does not answer"}, {}, {"active": "old"}])
def test_a_set_is_not_given_up_while_a_router_may_still_load_it(others):
    table = Table(staged=make_set("a"), staged_at=ago(31))
    views = [router(**others)] if "problem" in others else [router(refused=["a"]), router("r1", **others)]
    assert decide(make_cr(), [make_fit("a")], table, views, NOW).refused == {}
    assert decide(make_cr(), [make_fit("a")], table, [], NOW).refused == {}


def test_where_the_set_before_is_refused_a_roll_back_ends_with_none():
    fits = [make_fit("a", finished="2026-11-21T10:00:00Z"), make_fit("b", finished="2026-11-21T11:00:00Z")]
    table = Table(
        epoch=2,
        active=make_set("b"),
        previous=make_set("a"),
        staged=make_set("a"),
        staged_at=ago(31),
        activated_at=ago(600),
    )
    views = [router(active="b", refused=["a"])]
    found = decide(make_cr(), fits, table, views, NOW, blocked=("sha256:b",))
    assert [*found.refused] == [make_set("a").digest]
    after = decide(make_cr(), fits, found.table, views, NOW, blocked=("sha256:b", "sha256:a"))
    assert after.table == Table(epoch=3, activated_at=NOW, reason="RolledBack")


def test_nobody_loads_it_in_time():
    table = Table(staged=make_set("a"), staged_at=ago(31))
    decision = decide(
        make_cr(), [make_fit("a")], table, [router(problem="does not answer (ConnectError)")], NOW
    )
    assert (decision.table, verdict(decision)) == (table, ("False", "AckTimeout"))
    assert "router r0 (does not answer (ConnectError))" in decision.condition.message
    assert not decision.is_waiting


def test_without_routers_it_waits():
    table = Table(staged=make_set("a"), staged_at=ago(1000))
    decision = decide(make_cr(), [make_fit("a")], table, [], NOW)
    assert (decision.table, verdict(decision), decision.is_waiting) == (table, ("False", "Staging"), False)
    active = Table(epoch=1, active=make_set("a"), activated_at=ago(1000))
    assert verdict(decide(make_cr(), [make_fit("a")], active, [], NOW)) == ("Unknown", "NoReadyRouters")


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"active": "a"}, ("True", "Active")),
        ({"active": "old"}, ("False", "AckTimeout")),
        ({"active": "old", "age": 5}, ("True", "Active")),
        ({"problem": "does not answer"}, ("False", "AckTimeout")),
        ({"refused": ["a"]}, ("False", "Refused")),
    ],
)
def test_the_active_set_is_watched(view, expected):
    table = Table(epoch=1, active=make_set("a"), activated_at=ago(5000))
    decision = decide(make_cr(), [make_fit("a")], table, [router(**view)], NOW)
    assert (decision.table, verdict(decision)) == (table, expected)


def test_newest_wins_and_replaces_what_is_staged():
    fits = [make_fit("a", finished="2026-11-21T10:00:00Z"), make_fit("b", finished="2026-11-21T11:00:00Z")]
    table = Table(staged=make_set("a"), staged_at=ago(5))
    decision = decide(make_cr(), fits, table, [router(staged="a")], NOW)
    assert (decision.table.staged, decision.table.staged_at) == (make_set("b"), NOW)


def test_older_sets_never_replace_the_active_one():
    table = Table(epoch=7, active=make_set("b"), activated_at=ago(60))
    fits = [make_fit("a", finished="2026-11-21T10:00:00Z"), make_fit("b", finished="2026-11-21T11:00:00Z")]
    assert decide(make_cr(), fits, table, [router(active="b")], NOW).table == table
    assert decide(make_cr(), fits[:1], table, [router(active="b")], NOW).table == table, (
        "its EldrFit was deleted"
    )


def test_pin_rolls_back_and_its_removal_goes_forward():
    fits = [make_fit("a", finished="2026-11-21T10:00:00Z"), make_fit("b", finished="2026-11-21T11:00:00Z")]
    pinned = make_cr(centroids={"pin": "a"})
    table = Table(epoch=2, active=make_set("b"), previous=make_set("a"), activated_at=ago(60))
    staged = decide(pinned, fits, table, [router(active="b", staged="a")], NOW).table
    assert staged.staged == make_set("a")
    back = decide(pinned, fits, staged, [router(active="b", staged="a")], NOW).table
    assert (back.epoch, back.active, back.previous, back.reason) == (
        3,
        make_set("a"),
        make_set("b"),
        "Pinned",
    )
    still = decide(pinned, fits, back, [router(active="a")], NOW)
    assert (still.table, verdict(still)) == (back, ("True", "Pinned"))
    assert decide(make_cr(), fits, back, [router(active="a")], NOW).table.staged == make_set("b")


def test_pin_works_for_a_set_whose_fit_was_deleted():
    table = Table(epoch=2, active=make_set("b"), previous=make_set("a"), activated_at=ago(60))
    decision = decide(make_cr(centroids={"pin": "a"}), [], table, [router(active="b")], NOW)
    assert decision.table.staged == make_set("a")


@pytest.mark.parametrize(
    ("pin", "active", "expected", "text"),
    [
        ("nope", "b", ("True", "PinNotFound"), "there is no EldrFit nope here; pin one of: b"),
        ("nope", None, ("False", "PinNotFound"), "pin one of: b"),
        ("bad", "b", ("True", "PinNotAccepted"), "EldrFit bad is Rejected, not Accepted; pin one of: b"),
    ],
)
def test_pins_that_cannot_be_followed(pin, active, expected, text):
    table = Table(epoch=1, active=make_set(active), activated_at=ago(60)) if active else Table()
    fits = [make_fit("b"), make_fit("bad", "Rejected")]
    decision = decide(make_cr(centroids={"pin": pin}), fits, table, [router(active=active or "")], NOW)
    assert (decision.table, verdict(decision)) == (table, expected)
    assert text in decision.condition.message


def test_sets_of_another_k():
    scaled = make_cr(decode={"replicas": 4})
    table = Table(epoch=1, active=make_set("two"), activated_at=ago(60))
    fits = [make_fit("two", k=2, finished="2026-11-21T11:00:00Z")]
    decision = decide(scaled, fits, table, [router(active="two")], NOW)
    assert (decision.table, verdict(decision)) == (table, ("True", "KMismatch"))
    fits.append(make_fit("old", k=4, finished="2026-11-21T10:00:00Z"))
    assert decide(scaled, fits, table, [router(active="two")], NOW).table == table, (
        "it was judged on the traffic of an earlier time"
    )
    fits.append(make_fit("four", k=4, finished="2026-11-21T11:10:00Z"))
    decision = decide(scaled, fits, table, [router(active="two")], NOW)
    assert decision.table.staged == make_set("four", 4)
    fits.append(make_fit("three", k=3, finished="2026-11-21T11:30:00Z"))
    active = Table(epoch=2, active=make_set("four", 4), activated_at=ago(60))
    assert decide(scaled, fits, active, [router(active="four")], NOW).table == active, (
        "newer, but of another k"
    )


@pytest.mark.parametrize(("policy", "by_load"), [("ELDR", True), ("MarginalUnion", False)])
def test_what_happens_without_centroids_is_what_the_policy_does(policy, by_load):
    none = decide(make_cr(router={"policy": policy}), [], Table(), [router()], NOW)
    assert none.condition.reason == ("Bootstrapping" if by_load else "LearnedPrior")
    table = Table(epoch=1, active=make_set("two"), activated_at=ago(60))
    cr = make_cr(decode={"replicas": 4}, router={"policy": policy})
    some = decide(cr, [make_fit("two", k=2)], table, [router(active="two")], NOW)
    assert some.condition.reason == "KMismatch"
    assert ("in flight" in none.condition.message, "by load" in some.condition.message) == (by_load, by_load)
    told = "learn the prior" in none.condition.message, "step time" in some.condition.message
    assert told == (not by_load, not by_load)


def test_policy_that_ignores_centroids():
    table = Table(epoch=1, active=make_set("a"), activated_at=ago(60))
    decision = decide(make_cr(router={"policy": "JSQ"}), [make_fit("a")], table, [router(active="a")], NOW)
    assert verdict(decision) == ("False", "PolicyIgnoresCentroids")


def test_suspended_bootstrap_says_what_to_do():
    decision = decide(make_cr(refit={"suspend": "Enabled"}), [], Table(), [], NOW)
    assert "create an EldrFit" in decision.condition.message


@pytest.mark.parametrize(
    ("view", "reason", "remedy"),
    [
        (
            {"problem": "does not answer (ConnectTimeout)"},
            "RoutersUnreachable",
            "reach port 9100 of the routers",
        ),
        (
            {"problem": "answers 401", "refuses_token": True},
            "RouterTokenRefused",
            "kubectl delete secret x-admin -n ns",
        ),
    ],
)
def test_routers_out_of_reach_are_told_of(view, reason, remedy):
    views, cr = [RouterView(RouterPod("r0", "127.0.0.1", None), **view)], make_cr()
    table = Table(epoch=1, active=make_set("a"), activated_at=ago(5000))
    for known in (Table(), table):
        decision = decide(
            cr, [make_fit("a")] * bool(known.active), known, views, NOW, unreached_since=ago(30)
        )
        assert (decision.table, verdict(decision)) == (known, ("Unknown", reason))
        assert f"router r0 ({view['problem']})" in decision.condition.message
        assert remedy in decision.condition.message
        early = decide(cr, [], known, views, NOW, unreached_since=ago(29))
        assert early.condition.reason != reason


@pytest.mark.parametrize(
    ("fits", "text"),
    [
        ([], "the first fit runs when routers hold 1000 log records"),
        ([("x-bootstrap", "Running")], "EldrFit x-bootstrap is about to make one"),
        (
            [("x-bootstrap", "Rejected"), ("x-bootstrap-2", "Failed", "2026-11-21T11:00:00Z")],
            "EldrFit x-bootstrap-2 ended Failed (kubectl describe ef x-bootstrap-2); it is tried again",
        ),
    ],
)
def test_why_there_is_no_set_yet(fits, text):
    decision = decide(make_cr(), [make_fit(*fit) for fit in fits], Table(), [], NOW)
    assert decision.condition.reason == "LearnedPrior"
    assert text in decision.condition.message
