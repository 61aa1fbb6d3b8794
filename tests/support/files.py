"""Files that a router watches."""

from __future__ import annotations

from pathlib import Path


def put(file: Path, data: bytes) -> None:
    """Replace a file at once: one that is read half written is another document, with an epoch of its own."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(data)
    temporary.rename(file)
