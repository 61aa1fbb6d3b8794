"""What ``kubectl logs`` reads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from eldr_kube.agent.container import Container

FOLLOW_SECONDS = 0.1
_CHUNK = 1 << 16


def log_file(container: Container, *, previous: bool) -> Path | None:
    """Return the log of a container's current run, or of the one before, if there is one."""
    attempt = container.state.restarts
    # While a container waits for its restart, the run that ended last is both the current and the previous one.
    if previous and "waiting" not in container.state.current:
        attempt -= 1
    path = container.log(attempt)
    return path if attempt >= 0 and path.exists() else None


def read_log(path: Path, container: Container, query: Mapping[str, str]) -> Iterator[bytes]:
    """Yield a log's bytes, with ``follow`` until that run of the container has ended.

    ``sinceSeconds`` is known for the whole file only: lines carry no times.
    """
    since = float(query.get("sinceSeconds", "inf"))
    follow = query.get("follow") == "true"
    left = int(query.get("limitBytes", 1 << 62))
    with path.open("rb") as file:
        if time.time() - path.stat().st_mtime > since:
            file.seek(0, 2)
        elif "tailLines" in query:
            file.seek(tail_offset(path, int(query["tailLines"])))
        while left > 0:
            running = container.state.running and container.log(container.state.restarts) == path
            while data := file.read(min(_CHUNK, left)):
                left -= len(data)
                yield data
            if not (follow and running):
                return
            time.sleep(FOLLOW_SECONDS)


def tail_offset(path: Path, lines: int) -> int:
    """Return where the last ``lines`` lines of a file begin."""
    size = position = path.stat().st_size
    if lines <= 0:
        return size
    found = 0
    with path.open("rb") as file:
        while position > 0:
            start = max(0, position - _CHUNK)
            file.seek(start)
            block = file.read(position - start)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                # The newline that ends the file ends the last line and begins none.
                found += start + at + 1 < size
                if found == lines:
                    return start + at + 1
            position = start
    return 0
