"""Rows of what ran in which mode, from reports as pytest writes them."""

import os
import subprocess
import sys

import pytest

from eldr_bench.modes import HEADING, read, section, with_run

pytestmark = pytest.mark.process

PAGE = "# Engine\n\nText.\n\n## Memory\n\n| a |\n|---|\n"


TESTS = """
import pytest
@pytest.mark.parametrize("number", range(4))
def test_it(number):
    if number == 0:
        pytest.skip("not here")
    assert number < 3
"""


@pytest.fixture
def report(tmp_path):
    """Return a function that runs tests in a pytest of their own, and returns the row of its report."""
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(suite, *arguments):
        command = [sys.executable, "-m", "pytest", "--junitxml=r.xml", "-o", f"junit_suite_name={suite}"]
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        subprocess.run([*command, *arguments], cwd=tmp_path, env=env, capture_output=True, check=False)
        return read(tmp_path / "r.xml", "today")

    return run


def test_a_row_counts_what_ran(report):
    run = report("V2-asynchronous, 0.32, trained or gptoss")
    assert run[:6] == ("V2-asynchronous", "0.32", "trained or gptoss", 2, 1, 1)


def test_a_later_run_takes_the_place_of_the_one_before_and_others_stay(report):
    first, other = report("V1-synchronous, 0.32, all"), report("V2-synchronous, 0.32, all")
    page = with_run(with_run(PAGE, other), first)
    assert page.startswith(PAGE)
    assert section(page).splitlines()[-2:] == [first.line(), other.line()]
    later = report("V2-synchronous, 0.32, all", "-k", "1 or 2")
    again = with_run(page, later)
    assert section(again).splitlines()[-2:] == [first.line(), later.line()]
    assert again.count(HEADING) == 1
    assert section(PAGE) == ""


def test_no_row_is_lost_where_the_words_above_the_table_were_fewer(report):
    run = report("V1-synchronous, 0.32, all")
    page = with_run("# Page\n", run)
    before = [line for line in page.splitlines() if not line.startswith("environment of an engine")]
    other = run._replace(mode="another")
    assert run.line() in with_run("\n".join(before), other)
