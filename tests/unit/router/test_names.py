"""Which names of models mean one model: what engines have answered, within bounds."""

from eldr_router.engines.model_names import ModelNames


def test_a_name_that_means_something_else_now_is_learned_again():
    names = ModelNames()
    names.observe("b", "a")
    names.observe("b", "b")
    assert names.of("b") == "b"


def test_what_is_no_name_says_nothing():
    names = ModelNames()
    for answered in (None, "", 7, ["m"], "x" * 257):
        names.observe("b", answered)
        assert names.of("b") == "b"


def test_names_are_bounded():
    names = ModelNames(most=3)
    for n in range(10):
        names.observe(f"alias-{n}", "m")
    assert sum(names.of(f"alias-{n}") == "m" for n in range(10)) <= 3
    assert names.of("alias-9") == "m", "the latest is known"
