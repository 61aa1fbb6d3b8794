"""What keeps a release from being published under the wrong name."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import eldr

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
TAG = f"v{eldr.__version__}"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy what the check reads; its Python is this one's."""
    for name in (
        "hack/release",
        "charts/eldr/Chart.yaml",
        "CHANGELOG.md",
        "eldr/__init__.py",
        "docs/guides/image.md",
        "Containerfile",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "hack" / "venv").write_text("#!/bin/sh\n")
    (tmp_path / "hack" / "venv").chmod(0o755)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    change(
        tmp_path / "CHANGELOG.md",
        f"## {eldr.__version__} (unreleased)",
        f"## {eldr.__version__} (2026-12-01)",
    )
    return tmp_path


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text or after in text
    path.write_text(text.replace(before, after))


def check(folder: Path, tag: str) -> tuple[int, str]:
    command = [folder / "hack" / "release", "check", tag]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, done.stderr


def test_what_agrees_may_be_released(copy):
    assert check(copy, TAG) == (0, "")


@pytest.mark.parametrize(
    ("file", "before", "after", "tag", "said"),
    [
        ("CHANGELOG.md", "", "", "v9.9.9", "the tag is v9.9.9, the version is"),
        ("CHANGELOG.md", "(2026-12-01)", "(unreleased)", TAG, "give the section of 0.1.0 its date"),
        ("docs/guides/image.md", "eldr:0.1.0", "eldr:0.0.9", TAG, "docs/guides/image.md:9:eldr:0.0.9"),
        ("CHANGELOG.md", "## 0.1.0", "## 0.0.9", TAG, "no section '## 0.1.0'"),
        (
            "charts/eldr/Chart.yaml",
            "\nversion: 0.1.0",
            "\nversion: 0.2.0",
            TAG,
            "version is 0.2.0, the package is 0.1.0",
        ),
    ],
)
def test_what_does_not_agree_is_refused(copy, file, before, after, tag, said):
    change(copy / file, before, after)
    status, error = check(copy, tag)
    assert status == 1
    assert error.startswith("error: ")
    assert said in error
