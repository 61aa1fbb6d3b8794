"""The report of coverage: what it keeps of each file, and when less is taken than before."""

import json

import pytest

from tests.support.scripts import script


@pytest.fixture
def coverage(monkeypatch, tmp_path):
    module = script("coverage")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def test_a_report_has_lines_and_branches_of_each_file(coverage, tmp_path):
    summary = {"covered_lines": 8, "num_statements": 10, "covered_branches": 3, "num_branches": 4}
    (tmp_path / "all.json").write_text(json.dumps({"files": {"eldr/a.py": {"summary": summary}}}))
    assert coverage.report() == {"eldr/a.py": {"lines": [8, 10], "branches": [3, 4]}}


def test_a_file_of_which_less_is_taken_is_named(coverage):
    before = {"a": {"lines": [8, 10], "branches": [3, 4]}, "gone": {"lines": [1, 1], "branches": [0, 0]}}
    same = {"a": {"lines": [4, 5], "branches": [6, 8]}, "new": {"lines": [0, 9], "branches": [0, 2]}}
    assert list(coverage.lower(before, same)) == []
    less = {"a": {"lines": [9, 10], "branches": [2, 4]}}
    assert list(coverage.lower(before, less)) == ["a: 50.0 % of its branches instead of 75.0 %"]
    assert list(coverage.lower(before, {"a": {"lines": [0, 0], "branches": [0, 0]}})) == []
