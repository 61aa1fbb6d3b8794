"""Which sets are blocked stands on their fits, and is read again from there."""

from eldr_operator import records
from eldr_operator.drift.state import State
from eldr_operator.fits import marks
from tests.unit.operator.builders import NOW, make_fit


def state(blocked=(), harmful=()):
    return State(blocked=tuple(blocked), harmful=tuple(harmful))


def news(fit, blocked=(), harmful=(), refused=()):
    return list(marks.marks([fit], state(blocked, harmful), dict(refused), NOW))


def recalled(fit, blocked=(), harmful=()):
    return marks.recalled([fit], state(blocked, harmful))


def marked(fit, blocked, refused=(), harmful=()):
    ((found, status),) = news(fit, blocked, harmful, refused)
    assert found is fit
    return fit.model_copy(update={"status": status})


def test_what_was_marked_is_recalled():
    fit = marked(make_fit("a"), ["sha256:a"])
    assert (fit.blocked, fit.state) == ("RolledBack", ("True", "Accepted"))
    assert fit.status["conditions"][1]["lastTransitionTime"] == "2026-11-21T12:00:00Z"
    assert news(fit, ["sha256:a"]) == [], "once"
    assert recalled(fit).blocked == ("sha256:a",)
    assert recalled(fit, ("sha256:a", "sha256:b")).blocked == ("sha256:a", "sha256:b")
    assert recalled(fit, ("sha256:b",)).blocked == ("sha256:a", "sha256:b")


def test_only_the_fits_of_blocked_sets_are_marked():
    fits = [make_fit("a"), make_fit("b", "Rejected"), make_fit("c", "Running"), make_fit("d", "Pending")]
    assert list(marks.marks(fits, state(["sha256:b", "sha256:z"], ("sha256:y",)), {}, NOW)) == []
    assert marks.recalled(fits, state(("sha256:z",))).blocked == ("sha256:z",)


def test_why_a_set_was_refused_is_told():
    fit = marked(make_fit("a"), ["sha256:a"], {"sha256:a": "no router can load it: shape differs"})
    assert fit.blocked == "Refused"
    assert fit.status["conditions"][1]["message"].startswith(
        "no router can load it: shape differs: it is not"
    )


def test_that_a_set_harms_is_told_and_recalled_until_it_does_no_longer():
    fit = marked(make_fit("a"), [], harmful=["sha256:a"])
    assert (fit.harms, fit.blocked, fit.state) == (True, "", ("True", "Accepted"))
    assert news(fit, [], ["sha256:a"]) == [], "once"
    assert recalled(fit, (), ("sha256:b",)).harmful == ("sha256:a", "sha256:b")
    assert recalled(fit).blocked == ()
    over = marked(fit, [], harmful=["sha256:b"])
    assert [one["type"] for one in over.status["conditions"]] == ["Succeeded", "Regresses"]
    assert not over.harms
    assert news(over) == []
    assert recalled(over).harmful == ()


def test_a_set_that_harms_and_is_blocked_says_both():
    fit = marked(make_fit("a"), ["sha256:a"], harmful=["sha256:a"])
    assert (fit.harms, fit.blocked) == (True, "RolledBack")
    assert not marked(fit, ["sha256:a"]).harms
    assert marked(fit, ["sha256:a"]).blocked == "RolledBack"


def test_what_an_operator_before_this_one_has_barred_stays_blocked():
    fit = marked(make_fit("a"), ["sha256:a"])
    conditions = [
        each | ({"type": "Barred"} if each["type"] == "Blocked" else {}) for each in fit.status["conditions"]
    ]
    before = fit.model_copy(update={"status": fit.status | {"conditions": conditions}})
    assert recalled(before).blocked == ("sha256:a",)
    assert news(before, ["sha256:a"]) == [], "it says so already"
    assert records.read(State, {"barred": ["sha256:a"]}).blocked == ("sha256:a",)
    assert records.read(State, {"barred": ["sha256:a"], "blocked": []}).blocked == ()
