"""Where a refused engine leaves the reason."""

import pytest

from eldr import contract
from eldr.engine import refusal
from eldr.engine.errors import RanksDisagreeError, UnsupportedEngineError


def test_kubernetes_is_told_and_nobody_else(tmp_path):
    refusal.leave("nobody looks", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    log = tmp_path / "termination-log"
    log.write_text("older words that were longer than the new ones, of another container")
    refusal.leave("gpus=0: set it", log)
    assert log.read_text() == f"{contract.REFUSAL}gpus=0: set it"
    refusal.leave("x" * 10_000, log)
    assert len(log.read_bytes()) == 4096
    refusal.leave("again", tmp_path)  # a folder: nothing to write, nothing raised


@pytest.mark.parametrize("error", [UnsupportedEngineError, RanksDisagreeError])
def test_what_ends_the_engine_is_told_and_goes_on(monkeypatch, error):
    told = []
    monkeypatch.setattr(refusal, "leave", told.append)
    with pytest.raises(error, match="why"), refusal.reported():
        raise error("why")
    assert told == ["why"]


def test_other_errors_and_none_are_not_told(monkeypatch):
    monkeypatch.setattr(refusal, "leave", lambda _: pytest.fail("told"))
    with refusal.reported():
        pass
    with pytest.raises(KeyError), refusal.reported():
        raise KeyError
