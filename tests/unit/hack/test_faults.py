"""Faults that are put in on purpose: which ones there are, where they go, and which tests are asked."""

import ast
import sys

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
    kinds = {"constant", "condition", "left out", "operator", "comparison", "function", "result"}
    assert {one.fault.kind for one in found} == kinds


def test_a_fault_is_found_again_where_its_code_has_moved(faults):
    moved = SOURCE.replace("class Thing", "# more\n\n\nclass Thing")
    before, after = faults.sites("thing.py", SOURCE), faults.sites("thing.py", moved)
    assert [site.fault.place for site in before] == [site.fault.place for site in after]
    assert len({site.fault.place for site in before}) == len(before)


@pytest.fixture
def lines(faults, tmp_path, monkeypatch):
    """What a run of three files of tests has covered of the module."""
    (tmp_path / "commit").write_text("HEAD")
    data = CoverageData(str(tmp_path / "data"))
    for context, lines in {
        "": [1, 3, 9, 13],
        "tests/unit/test_b.py": range(13, 20),
        "tests/router/test_a.py|": [14, 15],
        "tests/unit/test_c.py": [15, 17],
    }.items():
        data.set_context(context)
        data.add_lines({"thing.py": list(lines)})
    data.write()
    monkeypatch.setattr(faults, "COVERAGE", tmp_path)
    return faults.Lines()


@pytest.mark.process
def test_a_caught_fault_names_its_test_and_leaves_the_file_as_it_was(faults, lines, tmp_path, monkeypatch):
    test = "from thing import Thing\n\ndef test_it():\n    Thing.note, Thing.ready = lambda *_: None, False\n    assert Thing().of('a') == 2\n"
    (tmp_path / "test_thing.py").write_text(test)
    path = tmp_path / "thing.py"
    path.write_text(SOURCE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_thing.py"]
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    monkeypatch.setattr(faults, "commands", lambda *_: [(command, environment)])
    caught = {
        site.fault.after: faults.judge(tmp_path, site.fault, lines).caught
        for site in faults.sites("thing.py", SOURCE)
        if site.fault.after in {"min(count, 2)", "count -= 1"}
    }
    assert caught == {"min(count, 2)": "test_thing.py::test_it", "count -= 1": ""}
    assert path.read_text() == SOURCE
