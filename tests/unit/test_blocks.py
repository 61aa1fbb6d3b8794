"""Commands that users copy from the README and the guides."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from eldr.cli import main
from eldr_kube.binaries import BinariesUnavailableError, clients
from tests.support.blocks import ROOT, blocks, languages
from tests.support.helm import rendered

pytestmark = pytest.mark.process
COMMANDS = list(blocks("sh"))
MARKS = re.compile(r"run|run-all|needs: (registry|GPU|hub)(, (registry|GPU|hub))*")
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_commands_stand_in_blocks_that_are_looked_at():
    assert languages() <= {"sh", "yaml", "text", "mermaid"}, "commands are sh"


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_commands_say_who_runs_them_and_are_whole(block):
    assert MARKS.fullmatch(block.mark), (
        f"{block}: put <!-- run -->, <!-- run-all --> or <!-- needs: ... --> above it"
    )
    parsed = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, f"{block}: {parsed.stderr}"
    assert set(re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE)) <= TARGETS
    for path in re.findall(r"(?:^| )((?:charts|examples|hack)/[\w./-]+)", block.text):
        assert (ROOT / path).exists(), f"{block}: there is no {path}"


RUNNERS = {"README.md"}
"""Pages whose blocks a test runs as a whole: tests/e2e/test_quickstart.py, and CI the long ones."""
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/**/*.md")]


def lines() -> Iterator[tuple[str, list[str]]]:
    """Yield where a command of `eldr`, kubectl or helm stands in a page, and its words."""
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text())
        for line in re.findall(r"^(?: {4,})?((?:\.venv/bin/)?(?:eldr|kubectl|helm) .*)$", text, re.MULTILINE):
            if not re.search(r"[|<>]|\$\(|\[", line.partition("#")[0]):
                first, *words = shlex.split(line.rstrip(" &"), comments=True)
                yield f"{page.relative_to(ROOT)}: {line}", [Path(first).name, *words]


def parse(command: click.Command, words: list[str], name: str) -> None:
    """Parse a command line without its values, down to the last subcommand."""
    context = click.Context(command, info_name=name)
    _, left, _ = command.make_parser(context).parse_args(list(words))
    if isinstance(command, click.Group):
        below = command.get_command(context, left[0])
        assert below is not None, f"{name} has no {left[0]}"
        parse(below, left[1:], f"{name} {left[0]}")


@functools.cache
def options_of(*command: str) -> set[str]:
    """Return the options that a command of kubectl or helm lists in its help, those of all commands included."""
    program = clients() / command[0]
    asked = [[*command[1:], "--help"], *([["options"]] if command[0] == "kubectl" else [])]
    texts = [
        subprocess.run([program, *one], capture_output=True, text=True, check=True).stdout for one in asked
    ]
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", "\n".join(texts)))


def test_blocks_marked_run_stand_where_a_test_runs_them():
    assert {str(block.page.relative_to(ROOT)) for block in COMMANDS if block.mark == "run"} == RUNNERS


@pytest.mark.parametrize(("where", "words"), [pytest.param(*one, id=one[0][:80]) for one in lines()])
def test_commands_have_the_options_that_they_are_given(where, words):
    if words[0] == "eldr":
        parse(main, words[1:], "eldr")
        return
    try:
        known = options_of(*words[:2])
    except BinariesUnavailableError as error:
        pytest.skip(f"no {words[0]} here: {error}")
    given = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
    assert given <= known, f"{where}: {words[1]} has no {given - known}"
    if words[0] == "helm" and "charts/eldr" in words:
        values = [word for before, word in itertools.pairwise(words) if before == "--set"]
        rendered(*(f"--set={value}" for value in values))
