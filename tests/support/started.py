"""Notices processes that tests start who do not say so: `make quick` leaves out those that do."""

from __future__ import annotations

import sys

_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})


class Started:
    """Counts what starts a process, in all of the interpreter; `multiprocessing` that spawns is not seen."""

    def __init__(self) -> None:
        self.count = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _: tuple[object, ...]) -> None:
        if event in _EVENTS:
            self.count += 1
