"""What looks on, in a thread of its own, while a test acts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

EVERY_SECONDS = 0.5


class Meanwhile(ABC):
    """Looks twice a second while its ``with`` block runs."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self._look()

    @abstractmethod
    def _look(self) -> None:
        """Look once."""
