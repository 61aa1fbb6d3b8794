"""Figures name the code that they are of."""

import re

import pytest

from eldr_bench import machine


@pytest.mark.process
def test_code_is_named_by_its_commit_or_said_to_have_none(monkeypatch, tmp_path):
    assert re.match(r"commit [0-9a-f]{10}|code that Git does not know", machine.revision())
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.revision() == "code that Git does not know"
