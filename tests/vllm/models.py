"""Random models for a test, written in the environment that holds torch."""

from __future__ import annotations

from pathlib import Path

from eldr_tiny_moe.client import run_in

SECONDS = 240


def written(environment: Path, family: str, folder: Path, *options: str) -> Path:
    """Write a model of a family, with options as of ``eldr_tiny_moe.variants``; return its folder."""
    with run_in(environment, "eldr_tiny_moe.variants", family, str(folder), *options) as process:
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out
    return folder
