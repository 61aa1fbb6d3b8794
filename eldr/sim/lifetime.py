"""How a simulated engine ends: as with ``--shutdown-timeout``.

It listens until its requests are finished.
"""

from __future__ import annotations

import time
from types import FrameType

import uvicorn

from eldr.sim.server import EngineApp


class DrainingServer(uvicorn.Server):
    """Keeps its socket open after SIGTERM while there is work.

    New requests get 500 meanwhile.

    Parameters
    ----------
    config : uvicorn.Config
    engine : EngineApp
    timeout : float
        Seconds; zero ends at once.
    """

    def __init__(self, config: uvicorn.Config, engine: EngineApp, timeout: float) -> None:
        super().__init__(config)
        self._engine = engine
        self._timeout = timeout
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; the second one ends at once."""
        if not self._timeout or self._deadline is not None:
            super().handle_exit(sig, frame)
            return
        self._engine.drain()
        self._deadline = time.monotonic() + self._timeout

    async def on_tick(self, counter: int) -> bool:
        """Look several times a second whether it is over."""
        if self._deadline is not None and (not self._engine.has_work() or time.monotonic() > self._deadline):
            self.should_exit = True
        return await super().on_tick(counter)
