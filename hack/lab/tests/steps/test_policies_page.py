"""The page of `make -C hack/lab bench-policies` holds what the traces found together."""

from eldr_lab.steps.policies_page import PAGE, Measured, load, page


def test_verdicts_rest_on_six_traces_and_the_interval_alone():
    changes = {"TPOT mean": (-3.0, 3.1), "TPOT P50": (-3.2, 3.1), "TPOT P99": (3.2, 3.1)}
    one = Measured("4 engines", "band", 6, changes)
    assert [one.verdict(time) for time in changes] == [
        "not distinguished over 6 traces",
        "shorter over 6 traces",
        "longer over 6 traces",
    ]
    assert one._replace(traces=5).verdict("TPOT P50") == "too few traces (5)"


def test_the_page_is_that_of_its_figures():
    assert page(load()) == PAGE.read_text()
