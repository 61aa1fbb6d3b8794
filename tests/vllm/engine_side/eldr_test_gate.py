"""Holds a real engine between a finished pull and the first token, beside the real transport.

While the file ``closed`` lies in the folder, the scheduler stops in the one place where it has just learned that blocks have
arrived, before it can schedule the first step of their request, and leaves a file ``pulled``.
"""

from __future__ import annotations

import time
from typing import Any

from eldr_test_connector import Idle


class Gate(Idle):
    """Holds the scheduler after a pull."""

    def update_connector_output(self, connector_output: Any) -> None:
        closed = self._folder / "closed"
        if connector_output.finished_recving and closed.exists():
            (self._folder / "pulled").touch()
            while closed.exists():
                time.sleep(0.01)
