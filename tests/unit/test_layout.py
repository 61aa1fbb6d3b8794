"""The folder named `operator` must never become a package: it would shadow the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_source_folders_are_not_packages() -> None:
    for folder in ("operator", "router", "hack"):
        assert not (ROOT / folder / "__init__.py").exists(), f"{folder}/__init__.py must not exist"


@pytest.mark.process
def test_a_fresh_interpreter_imports_the_standard_operator() -> None:
    code = "import operator, sysconfig; print(operator.__file__.startswith(sysconfig.get_path('stdlib')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
