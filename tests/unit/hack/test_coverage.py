"""The report of coverage: when less of a file is taken than before."""

from tests.support.scripts import script


def test_a_file_of_which_less_is_taken_is_named():
    coverage = script("coverage")
    before = {"a": {"lines": [8, 10], "branches": [3, 4]}, "gone": {"lines": [1, 1], "branches": [0, 0]}}
    same = {"a": {"lines": [4, 5], "branches": [6, 8]}, "new": {"lines": [0, 9], "branches": [0, 2]}}
    assert list(coverage.lower(before, same)) == []
    less = {"a": {"lines": [9, 10], "branches": [2, 4]}}
    assert list(coverage.lower(before, less)) == ["a: 50.0 % of its branches instead of 75.0 %"]
    assert list(coverage.lower(before, {"a": {"lines": [0, 0], "branches": [0, 0]}})) == []
