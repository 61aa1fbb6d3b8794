"""What a stored result was measured with: results that differ in any of it are not put together."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from eldr_bench.machine import ROOT, cpu_model
from eldr_lab.steps.machine import LAB, TINY

_CODE = (
    *(ROOT / "eldr" / part for part in ("core", "fit", "simulate")),
    *(LAB / "eldr_lab" / part for part in ("pool", "steps")),
    TINY / "eldr_tiny_moe",
)
_READERS = ("__main__.py", "law_bench.py", "policies_bench.py", "policies_figures.py", "policies_page.py", "store.py")  # fmt: skip
"""Of this package: they tell what was measured, and change nothing of it."""


def key(environment: Path, setting: str) -> dict[str, str]:
    """Return what a result depends on, each part short enough for a message.

    Parameters
    ----------
    environment : Path
        vLLM's; its name says what is installed.
    setting : str
    """
    return {
        "code": code(),
        "vLLM": environment.name,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores, {_short(platform.node().encode())}",
        "setting": setting,
    }


def code(folders: tuple[Path, ...] = _CODE) -> str:
    """Return a digest of the code and the model that a measurement runs."""
    files = [path for folder in folders for path in folder.rglob("*.py")]
    steps = Path(__file__).parent
    read = [path for path in files if not (path.parent == steps and path.name in _READERS)]
    parts = [*sorted(read), TINY / "model" / "model.safetensors"]
    return _short(b"\0".join(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() for path in parts))  # fmt: skip


def _short(what: bytes) -> str:
    return hashlib.sha256(what).hexdigest()[:10]
