"""What CI does with a test that fails: one more try, which hides nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.process


@pytest.fixture
def run(tmp_path):
    """Run the tests of a text, which may keep files in the folder ``kept``."""

    def run(text: str, *arguments: str, again: str = "1"):
        kept = tmp_path / "kept"
        kept.mkdir()
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "test_it.py").write_text(f"from pathlib import Path\nKEPT = Path({str(kept)!r})\n{text}")
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "ELDR"))}
        command = [str(ROOT / "hack/pytest"), sys.executable, "-q", *arguments, "test_it.py"]
        done = subprocess.run(
            command,
            check=False,
            cwd=tmp_path,
            env=env | {"ELDR_SECOND_TRY": again},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, sorted(path.name for path in kept.iterdir())

    return run


ONCE = """
def test_fails_once():
    first = not (KEPT / "tried").exists()
    (KEPT / "tried").touch()
    assert not first

def test_passes():
    (KEPT / "passed").open("x")
"""


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["one process", "workers"])
def test_what_fails_once_runs_again_alone_and_is_named(run, arguments):
    status, printed, _ = run(ONCE, *arguments)
    assert status == 0, printed
    assert "assert not first" in printed, "why it failed is kept"
    assert printed.endswith("UNSTABLE test_it.py::test_fails_once - failed, then passed by itself\n")


def test_what_fails_twice_fails(run):
    status, printed, kept = run(
        "def test_never(): (KEPT / str(len([*KEPT.iterdir()]))).touch(); assert False"
    )
    assert status == 1
    assert "UNSTABLE" not in printed
    assert kept == ["0", "1"]


def test_only_ci_tries_twice(run):
    status, printed, _ = run(ONCE, again="")
    assert status == 1
    assert "second try" not in printed
