"""Which build of the operator this is: two builds can have one version and one tag, as ``:main`` has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import eldr

_DIGITS = 12


def identity(image: str) -> str:
    """Return version, image and a digest of the code that makes the templates of pods."""
    return f"{eldr.__version__} {image} {digest([Path(eldr.__file__).parent, Path(__file__).parent])}"


def digest(folders: Iterable[Path]) -> str:
    """Return a digest of the Python modules in folders, by their place below them and their content."""
    hasher = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            hasher.update(f"{path.relative_to(folder)} {len(content)}\0".encode() + content)
    return hasher.hexdigest()[:_DIGITS]
