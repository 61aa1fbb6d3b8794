"""Which sets are barred stands on their fits, and is read again from there."""

from eldr_operator.fits import bars


def marked(fit, barred, now, refused=()):
    ((found, status),) = bars.marks([fit], barred, dict(refused), now)
    assert found is fit
    return fit.model_copy(update={"status": status})


def test_what_was_marked_is_recalled(make_fit, now):
    fit = marked(make_fit("a"), ["sha256:a"], now)
    assert (fit.barred, fit.state) == ("RolledBack", ("True", "Accepted"))
    assert fit.status["conditions"][1]["lastTransitionTime"] == "2026-11-21T12:00:00Z"
    assert list(bars.marks([fit], ["sha256:a"], {}, now)) == [], "once"
    assert bars.recalled([fit], ()) == ("sha256:a",)
    assert bars.recalled([fit], ("sha256:a", "sha256:b")) == ("sha256:a", "sha256:b")
    assert bars.recalled([fit], ("sha256:b",)) == ("sha256:a", "sha256:b")


def test_only_the_fits_of_barred_sets_are_marked(make_fit, now):
    fits = [make_fit("a"), make_fit("b", "Rejected"), make_fit("c", "Running"), make_fit("d", "Pending")]
    assert list(bars.marks(fits, ["sha256:b", "sha256:z"], {}, now)) == []
    assert bars.recalled(fits, ("sha256:z",)) == ("sha256:z",)


def test_why_a_set_was_refused_is_told(make_fit, now):
    fit = marked(make_fit("a"), ["sha256:a"], now, {"sha256:a": "no router can load it: shape differs"})
    assert fit.barred == "Refused"
    assert fit.status["conditions"][1]["message"].startswith(
        "no router can load it: shape differs: it is not"
    )
