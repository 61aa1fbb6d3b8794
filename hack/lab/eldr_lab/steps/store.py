"""Results of traces, stored one by one, so that another call goes on where one ended; see :class:`Store`."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

Json = dict[str, Any]


class Store:
    """A file of JSON lines; each has the key of what it was measured with.

    Parameters
    ----------
    path : Path
    key : mapping of str to str
        What was measured, and with what. Lines with another key stay in the file, and out of the figures.

    Attributes
    ----------
    rows : list of dict
        Lines with this key, in the order in which they were added.
    left_out : list of str
        What else the file holds, and why it does not count.
    """

    def __init__(self, path: Path, key: Mapping[str, str]) -> None:
        self._path, self._key = path, dict(key)
        self.rows: list[Json] = []
        reasons: Counter[str] = Counter()
        for line in path.read_bytes().splitlines() if path.exists() else []:
            if not line:
                continue
            try:
                row = json.loads(line)
                other = [name for name in self._key if row["key"].get(name) != self._key[name]]
            except (ValueError, KeyError, TypeError, AttributeError):
                reasons["not whole: something ended the program that wrote it"] += 1
                continue
            if other:
                reasons["; ".join(f"another {name}: {row['key'].get(name)}" for name in other)] += 1
            else:
                self.rows.append(row["row"])
        self.left_out = [f"{n} stored {'results' if n > 1 else 'result'} left out: {why}" for why, n in reasons.items()]  # fmt: skip

    def add(self, row: Json) -> None:
        """Add a result; it is on the disk when this returns."""
        # a line that something cut off must not swallow this one
        cut = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
        line = json.dumps({"key": self._key, "row": row})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write("\n" * cut + line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(json.loads(line)["row"])


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let no other process measure into this file until the block ends.

    Raises
    ------
    click.ClickException
        If one does now.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another process measures into {path} now") from None
        yield
