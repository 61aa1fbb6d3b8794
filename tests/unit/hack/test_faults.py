"""Faults that are put in on purpose: which ones there are, where they go, and which tests are asked."""

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest
from coverage import CoverageData

from tests.support.scripts import script

SOURCE = '''"""A module; "1 < 2" is no comparison here."""

import logging
from typing import TYPE_CHECKING

log = logging.getLogger()
if TYPE_CHECKING:
    import json

LIMIT: int = 3


class Thing:
    def of(self, text: str, count: int = 1) -> int:
        if not text:
            raise ValueError(f"text: {count + 1} expected")
        log.info("never left out")
        self.note(text)
        while self.ready:
            count += 1
        return max(count, 2) if count < LIMIT and text != "é" else len("a" + text)
'''


@pytest.fixture(scope="module")
def faults():
    return script("faults")


def changed(source, site):
    data = source.encode()
    return (data[: site.begins] + site.fault.after.encode() + data[site.ends :]).decode()


def test_each_fault_changes_one_place_and_leaves_python(faults):
    found = faults.sites("thing.py", SOURCE)
    texts = {changed(SOURCE, site) for site in found}
    assert len(texts) == len(found)  # no two are the same
    for text in texts:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE))
    assert {(one.fault.kind, one.fault.before.split("(")[0].split(" ")[0]) for one in found} == {
        ("constant", "3"), ("constant", "1"), ("constant", "2"), ("condition", "not"), ("condition", "self.ready"), ("left out", "raise"),
        ("left out", "self.note"), ("operator", "count"), ("comparison", "count"), ("comparison", "text"), ("function", "max"), ("result", "return"),
    }  # fmt: skip


def test_a_fault_is_found_again_where_its_code_has_moved(faults):
    moved = SOURCE.replace("class Thing", "# more\n\n\nclass Thing")
    before, after = faults.sites("thing.py", SOURCE), faults.sites("thing.py", moved)
    assert [site.fault.place for site in before] == [site.fault.place for site in after]
    assert len({site.fault.place for site in before}) == len(before)


@pytest.fixture
def repository(faults, tmp_path, monkeypatch):
    """A product of two folders, on which one file of tests has run."""
    for path, text in {
        "eldr/a/one.py": SOURCE,
        "eldr/b/two.py": "def f(x):\n    return x < 1\n",
        "eldr/b/__init__.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "commit").write_text(commit)
    data = CoverageData(str(folder / "data"))
    for context, lines in {
        "": [1, 3, 9, 13],
        "tests/unit/test_b.py": range(13, 20),
        "tests/router/test_a.py|": [14, 15],
        "tests/unit/test_c.py": [15, 17],
    }.items():
        data.set_context(context)
        data.add_lines({"eldr/a/one.py": list(lines)})
    data.write()
    monkeypatch.setattr(faults, "ROOT", tmp_path)
    monkeypatch.setattr(faults, "COVERAGE", folder)
    return tmp_path


@pytest.mark.process
def test_every_folder_has_a_fault_and_a_seed_gives_the_same_again(faults, repository):
    found = faults.drawn(repository, seed=7, count=9)
    assert {str(Path(fault.path).parent) for fault in found} == {"eldr/a", "eldr/b"}
    assert faults.drawn(repository, seed=7, count=9) == found != faults.drawn(repository, seed=8, count=9)


@pytest.mark.process
def test_tests_that_run_the_line_are_asked_units_and_specific_ones_first(faults, repository):
    lines = faults.Lines()
    by_text = {site.fault.before: site.fault for site in faults.sites("eldr/a/one.py", SOURCE)}
    assert lines.tests(by_text["not text"]) == [
        "tests/unit/test_c.py",
        "tests/unit/test_b.py",
        "tests/router/test_a.py",
    ]
    assert lines.tests(by_text["self.note(text)"]) == ["tests/unit/test_b.py"]
    assert len(lines.tests(by_text["3"])) == 3  # an import runs it: any test of the file
    (repository / "eldr/b/two.py").write_text("")
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "two"],
        cwd=repository,
        check=True,
    )
    with pytest.raises(click.ClickException, match="run it again"):
        faults.Lines()


@pytest.mark.process
def test_a_caught_fault_names_its_test_and_leaves_the_file_as_it_was(faults, repository, monkeypatch):
    test = "from one import Thing\n\ndef test_it():\n    Thing.note, Thing.ready = lambda *_: None, False\n    assert Thing().of('a') == 2\n"
    (repository / "test_thing.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_thing.py"]
    monkeypatch.setattr(
        faults,
        "commands",
        lambda root, tests: [(command, {"PYTHONPATH": str(root / "eldr/a"), "PYTHONDONTWRITEBYTECODE": "1"})],
    )
    lines, path = faults.Lines(), repository / "eldr/a/one.py"
    caught = {
        site.fault.after: faults.judge(repository, site.fault, lines).caught
        for site in faults.sites("eldr/a/one.py", SOURCE)
        if site.fault.after in {"min(count, 2)", "count -= 1"}
    }
    assert caught == {"min(count, 2)": "test_thing.py::test_it", "count -= 1": ""}
    assert path.read_text() == SOURCE
    path.write_text("")
    assert faults.judge(repository, faults.sites("eldr/a/one.py", SOURCE)[0].fault, lines) is None


@pytest.mark.process
def test_tests_that_do_not_end_are_ended(faults, tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "PATIENCE", 1.0)
    assert faults.run(tmp_path, [sys.executable, "-c", "import time; time.sleep(600)"], {}) == "hangs"
