"""The `eldr` command: what a sub-command lacks is said in a line, and what holds for all of them."""

import errno
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from eldr.cli import COMMANDS, main
from eldr.options import FiniteRange


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, COMMANDS["engine-sim"].module, raising=False)
    found = CliRunner().invoke(main, ["engine-sim", "--help"])
    assert found.exit_code == 1
    assert found.output == (
        "Error: eldr engine-sim needs the package uvicorn, which is not installed; "
        "install ELDR with its extra sim, by pipx install '.[sim]' or uv tool install '.[sim]' in its source\n"
    )


@pytest.mark.parametrize(
    ("typed", "meant"), [("stauts", "status"), ("doctro", "doctor"), ("engine-sin", "engine-sim")]
)
def test_a_command_that_is_misspelt_is_suggested(typed, meant):
    found = CliRunner().invoke(main, [typed, "x"])
    assert found.exit_code == 2
    assert f"No such command '{typed}'." in found.output
    assert f"'{meant}'" in found.output


def test_no_option_shows_two_defaults():
    for name, command in all_commands():
        context = click.Context(command, info_name=name, **command.context_settings)
        for parameter in command.params:
            shown = " ".join(parameter.get_help_record(context) or ())
            assert shown.count("[default") + shown.count("; default") <= 1, (name, shown)


def test_a_package_that_is_missed_while_it_runs_is_named_too(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "eldr.fit.local", raising=False)
    found = CliRunner().invoke(
        main, ["fit", "log", str(tmp_path), "--model=m", "--k=2", f"--out={tmp_path / 'set.eldr'}"]
    )
    assert found.exit_code == 1
    assert (
        "eldr fit needs the package rich, which is not installed; install ELDR with its extra fit"
        in found.output
    )


@pytest.mark.parametrize("name", ["eldr.sim.nothing", "eldr_router.nothing"])
def test_a_fault_of_ours_stays_a_fault(monkeypatch, name):
    def fails() -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("eldr.cli.importlib.import_module", lambda _: fails())
    found = CliRunner().invoke(main, ["fit"])
    assert isinstance(found.exception, ModuleNotFoundError)


@pytest.mark.parametrize(("name", "where"), [(None, ""), ("log/7.siglog", " log/7.siglog")])
def test_a_full_disk_is_told_in_a_line(monkeypatch, name, where):
    def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", name)

    monkeypatch.setattr("eldr.cli.importlib.import_module", lambda _: fails())
    found = CliRunner().invoke(main, ["fit"])
    remedy = "free some space, or name a place that can be written to"
    assert str(found.exception) == f"Error: cannot write{where}: No space left on device; {remedy}"


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device /dev/full of Linux")
def test_output_that_nobody_can_take_is_told_in_a_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", "import eldr.cli; eldr.cli.main()", "--help"]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot write: No space left on device; free some space")
    assert len(done.stderr.splitlines()) == 1


def all_commands():
    """Yield every command with its name, those of groups too."""
    waiting = [(name, main.get_command(click.Context(main), name)) for name in COMMANDS]
    while waiting:
        name, found = waiting.pop()
        yield name, found
        if isinstance(found, click.Group):
            waiting += [(f"{name} {inner}", one) for inner, one in found.commands.items()]


def test_no_number_may_be_nan_or_infinite():
    """Neither is below or above a bound, so that a range alone lets them through."""
    unbound = [
        f"{name} --{option.name}"
        for name, command in all_commands()
        for option in command.params
        if isinstance(option.type, click.types.FloatParamType) and not isinstance(option.type, FiniteRange)
    ]
    assert unbound == []


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "x", "--against=JSQ", "--hours=1", "--window"),
        ("engine-sim", "--role=decode", "--speed"),
        ("operator", "--all-namespaces", "--resync-seconds"),
        ("router", "--drain-seconds"),
    ],
)
def test_what_is_no_finite_number_is_refused(arguments, value):
    *before, option = arguments
    found = CliRunner().invoke(main, [*before, f"{option}={value}"])
    assert found.exit_code == 2, found.output
    assert f"Invalid value for '{option}'" in found.output
    assert "expected a finite number" in found.output or "is not in the range" in found.output


def test_two_equal_ports_of_the_operator_are_refused_and_named():
    same = ["operator", "--all-namespaces", "--metrics-port=8080", "--liveness-port=8080"]
    found = CliRunner().invoke(main, same)
    assert found.exit_code == 2, found.output
    assert "--metrics-port and --liveness-port are both 8080" in found.output
