"""Server-sent events in decoded body bytes, however they are cut. Pure."""

from __future__ import annotations

from collections.abc import Callable


class FirstEvent:
    """Finds the data of the first server-sent event that counts.

    Parameters
    ----------
    limit : int
        Bytes to search, then it is given up. The first event of an engine may hold the prompt's token ids.
    skip : callable, optional
        Returns by its data whether an event does not count.
    """

    __slots__ = ("_data", "_limit", "_rest", "_seen", "_skip", "data", "decided")

    def __init__(self, limit: int = 1 << 20, skip: Callable[[bytes], bool] | None = None) -> None:
        self._limit = limit
        self._skip = skip
        self._seen = 0
        self._data: list[bytes] = []
        self._rest: list[bytes] = []  # of a line that is not complete
        self.decided = False
        self.data: bytes | None = None

    def feed(self, payload: bytes) -> bool:
        """Take bytes; True as soon as ``data`` is known or given up.

        Given up: None.
        """
        if self.decided:
            return True
        payload = payload[: self._limit - self._seen]
        self._seen += len(payload)
        for data in self._events(payload):
            if self._skip is None or not self._skip(data):
                self.data, self.decided = data, True
                return True
        self.decided = self._seen == self._limit
        return self.decided

    def _events(self, payload: bytes) -> list[bytes]:
        """Return the data of the events that are complete now."""
        if b"\n" not in payload and b"\r" not in payload and not (self._rest and self._rest[-1] == b"\r"):
            self._rest.append(payload)
            return []
        text = b"".join((*self._rest, payload))
        held = text[-1:] if text.endswith(b"\r") else b""  # a LF may follow
        text = text[: len(text) - len(held)]
        *lines, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = [part for part in (rest, held) if part]
        events: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
