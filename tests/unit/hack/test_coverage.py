"""The report of coverage: what it keeps of each file, and when less is taken than before."""

import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "hack" / "coverage"


@pytest.fixture
def coverage(monkeypatch, tmp_path):
    loader = importlib.machinery.SourceFileLoader("hack_coverage", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("hack_coverage", loader))
    monkeypatch.setitem(sys.modules, "hack_coverage", module)
    loader.exec_module(module)
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
