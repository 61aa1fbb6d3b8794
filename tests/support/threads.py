"""One HTTP client per thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx


class PerThread:
    """Clients of which each thread has its own.

    httpcore 1.0.9 asks of every connection whether it is idle, and then whether its socket can be read: one that another thread begins to
    use in between, and that is answered, looks as if its server had closed it. The pool closes it under that thread ("Bad file descriptor").

    Parameters
    ----------
    make : callable
        Makes a client.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make, self._clients = make, dict[int, httpx.Client]()

    def __call__(self) -> httpx.Client:
        """Return the client of the thread that asks; a later thread may inherit that of one that is gone."""
        thread = threading.get_ident()
        if thread not in self._clients:
            self._clients[thread] = self._make()
        return self._clients[thread]

    def close(self) -> None:
        """Close them all."""
        for client in list(self._clients.values()):
            client.close()
