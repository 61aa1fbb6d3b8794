"""Commands that users copy from the README and the guides."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.blocks import ROOT, blocks

pytestmark = pytest.mark.process
COMMANDS = list(blocks("sh"))
MARKS = re.compile(r"run|run-all|needs: (registry|GPU|hub)(, (registry|GPU|hub))*")
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_there_are_some_of_each_kind():
    assert {block.mark.partition(":")[0] for block in COMMANDS} >= {"run", "run-all", "needs"}


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
