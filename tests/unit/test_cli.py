"""The `eldr` command: what a sub-command lacks is said in a line."""

import sys

import pytest
from click.testing import CliRunner

from eldr.cli import COMMANDS, main


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, COMMANDS["engine-sim"].module, raising=False)
    found = CliRunner().invoke(main, ["engine-sim", "--help"])
    assert found.exit_code == 1
    assert found.output == (
        "Error: eldr engine-sim needs the package uvicorn, which is not installed; run: pip install 'eldr[sim]'\n"
    )


def test_a_package_that_is_missed_while_it_runs_is_named_too(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "eldr.fit.local", raising=False)
    found = CliRunner().invoke(
        main, ["fit", "log", str(tmp_path), "--model=m", "--k=2", f"--out={tmp_path / 'set.eldr'}"]
    )
    assert found.exit_code == 1
    assert (
        "eldr fit needs the package rich, which is not installed; run: pip install 'eldr[fit]'"
        in found.output
    )


@pytest.mark.parametrize("name", ["eldr.sim.nothing", "eldr_router.nothing"])
def test_a_fault_of_ours_stays_a_fault(monkeypatch, name):
    def fails() -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("eldr.cli.importlib.import_module", lambda _: fails())
    found = CliRunner().invoke(main, ["fit"])
    assert isinstance(found.exception, ModuleNotFoundError)
