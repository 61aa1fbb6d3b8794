"""A response body on its way to a client, in whole units. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from eldr_router.http.errors import error_body
from eldr_router.http.framing import Tracker

_HOLD = 1 << 16
DONE = b"data: [DONE]"
"""How the last event of an event stream begins."""


class Relay:
    """Passes a body on so that it can end with an error event.

    A chunk that is not complete is held back; one larger than 64 KiB is torn: passed on in parts.

    Parameters
    ----------
    tracker : Tracker
        Of the response body.
    dechunk : bool
        The client knows no chunks (HTTP/1.0) and gets decoded parts.
    """

    __slots__ = ("_before", "_dechunk", "_held", "_last", "_splittable", "_torn")

    def __init__(self, tracker: Tracker, *, dechunk: bool) -> None:
        self._splittable = tracker.splittable
        self._dechunk = dechunk
        self._held = b""
        self._before = self._last = b""
        self._torn = False

    @property
    def end(self) -> bytes:
        """The last event before a stream's end, if it is not very long."""
        return self._before + self._last

    def pass_on(self, data: bytes, boundary: int) -> bytes:
        """Return what the client gets of the next bytes.

        For a client without chunks ``data`` is the decoded part.
        """
        if boundary == len(data) and not self._held and not self._torn:
            self._before, self._last = self._last, data  # the hot path, once per streamed chunk
            return data
        if self._dechunk or not self._splittable:
            out = data
        elif boundary:
            out, self._held = self._held + data[:boundary], data[boundary:]
            self._torn = False
        else:
            out, self._held = b"", self._held + data
        if len(self._held) > _HOLD or (self._torn and self._held):
            out, self._held, self._torn = out + self._held, b"", True
        if out:
            self._before, self._last = self._last, out
        return out

    def ending(self, message: str, done: Sequence[bytes] = (DONE,), *, named: bool = False) -> bytes | None:
        """Return what ends a broken event stream; None inside a unit.

        Parameters
        ----------
        message : str
        done : sequence of bytes
            How the last event of such a stream begins, one of them.
        named : bool
            Whether its events have names.
        """
        if self._torn or not (self._splittable or self._dechunk):
            return None
        complete = self._last.endswith(b"\n\n" if self._dechunk else b"\n\n\r\n")
        if complete and _is_last(self._last, done):  # everything was said; only the body's end is missing
            return b"" if self._dechunk else b"0\r\n\r\n"
        name = b"event: error\n" if named else b""
        event = name + b"data: " + error_body(message, 502, "upstream_failed") + b"\n\n"
        if not complete and self._last:
            event = b"\n\n" + event
        return event if self._dechunk else b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)


def _is_last(said: bytes, done: Sequence[bytes]) -> bool:
    """Return whether the last event of what was said begins so; no text within an event can, as it has no line breaks."""
    before = said.rstrip(b"\r\n")
    line = b"\n" + before[before.rfind(b"\n\n") + 1 :]
    return any(b"\n" + begin in line for begin in done)
