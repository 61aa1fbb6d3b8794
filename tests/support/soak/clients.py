"""Clients of a soak: one connection each, byte by byte as they like."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable

from tests.support.soak.asks import Ask, Visit
from tests.support.soak.judge import Record
from tests.support.soak.reader import Answer, Reader

PATIENCE = 90.0
"""Seconds without a byte after which a client says that the router hangs: longer than three engines may stay silent."""
_SMALL_WINDOW = 4096
_RESET = struct.pack("ii", 1, 0)


class Line:
    """A connection to a router."""

    def __init__(self, port: int, *, window: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        if window:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._port = port
        self.reader = Reader()
        self.ended = ""
        self.received_at = 0.0

    async def open(self) -> None:
        await asyncio.wait_for(self._loop.sock_connect(self._socket, ("127.0.0.1", self._port)), PATIENCE)

    async def send(self, *parts: bytes) -> None:
        """Send, unless the router has closed: then it may have answered already."""
        with contextlib.suppress(ConnectionError):
            for part in parts:
                await asyncio.wait_for(self._loop.sock_sendall(self._socket, part), PATIENCE)

    async def receive(self, size: int = 1 << 16) -> bool:
        """Read once; False if nothing more comes."""
        if self.ended:
            return False
        try:
            data = await asyncio.wait_for(self._loop.sock_recv(self._socket, size), PATIENCE)
        except TimeoutError:
            self.ended = "hung"
            return False
        except ConnectionError:
            self.ended = "reset"
            return False
        if not data:
            self.ended = "closed"
            return False
        self.received_at = self.received_at or time.time()
        self.reader.feed(data)
        if self.reader.problem:
            self.ended = f"no HTTP: {self.reader.problem}"
        return not self.ended

    async def answers(self, count: int) -> None:
        """Read until so many answers are complete, or nothing more comes."""
        while sum(answer.complete for answer in self.reader.answers) < count and await self.receive():
            pass

    def close_half(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, abrupt: bool = False) -> None:
        if abrupt:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()


class Client:
    """Performs one visit and reports what became of each request.

    Parameters
    ----------
    port : int
    visit : Visit
    report : callable
    """

    def __init__(self, port: int, visit: Visit, report: Callable[[Record], None]) -> None:
        self._port = port
        self._visit = visit
        self._report = report
        self._began = time.time()

    async def perform(self) -> None:
        """Do it all; the connection is closed in the end."""
        visit = self._visit
        line = Line(self._port, window=_SMALL_WINDOW if visit.manner in ("slow", "stall") else 0)
        try:
            await line.open()
            if visit.manner == "keep_alive":
                line = await self._keep_alive(line)
            else:
                await getattr(self, f"_{visit.manner}", self._one)(line)
        finally:
            line.close(abrupt=visit.abrupt)

    def _tell(self, line: Line, ask: Ask, index: int = 0, *, left: bool = False) -> None:
        answers = line.reader.answers
        answer: Answer | None = answers[index] if index < len(answers) else None
        end = "left" if left else line.ended
        if answer is not None and answer.complete:
            end = "complete"
        ended = time.time()
        first = max(0.0, line.received_at - self._began)
        manner, began = self._visit.manner, self._began
        self._report(Record(ask, manner, began, ended, end or "closed", answer, first, self._port))

    async def _one(self, line: Line) -> None:
        ask = self._visit.asks[0]
        await line.send(ask.raw or ask.head(close=self._visit.pieces % 2 == 0) + ask.body)
        await line.answers(1)
        self._tell(line, ask)

    async def _keep_alive(self, line: Line) -> Line:
        for ask in self._visit.asks:
            answers = line.reader.answers
            if line.ended or (answers and _ends_connection(answers[0])):
                line.close()
                line = Line(self._port)
                await line.open()
            self._began, line.received_at = time.time(), 0.0
            line.reader.answers.clear()
            await line.send(ask.head() + ask.body)
            await line.answers(1)
            self._tell(line, ask)
            await asyncio.sleep(self._visit.seconds)
        return line

    async def _pipeline(self, line: Line) -> None:
        asks = self._visit.asks
        sending = asyncio.create_task(line.send(b"".join(ask.head() + ask.body for ask in asks)))
        await line.answers(len(asks))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        answered = line.reader.answers
        over = line.ended == "closed" and answered and _ends_connection(answered[-1])
        for index, ask in enumerate(asks):
            if over and index >= len(answered):
                self._report(
                    Record(ask, "pipeline", self._began, time.time(), "unsent", None, port=self._port)
                )
            else:
                self._tell(line, ask, index)

    async def _pieces(self, line: Line) -> None:
        ask = self._visit.asks[0]
        data = ask.head() + ask.body
        size = -(-len(data) // self._visit.pieces)
        for start in range(0, len(data), size):
            await line.send(data[start : start + size])
            await asyncio.sleep(self._visit.seconds)
        await line.answers(1)
        self._tell(line, ask)

    async def _expect(self, line: Line) -> None:
        ask = self._visit.asks[0]
        await line.send(ask.head().replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
        while not line.reader.interim and not line.reader.answers and await line.receive():
            pass
        await line.send(ask.body)
        await line.answers(1)
        self._tell(line, ask)

    async def _half_closed(self, line: Line) -> None:
        ask = self._visit.asks[0]
        await line.send(ask.head() + ask.body)
        line.close_half()
        await line.answers(1)
        self._tell(line, ask)

    async def _http10(self, line: Line) -> None:
        ask = self._visit.asks[0]
        await line.send(ask.head(version="1.0") + ask.body)
        await line.answers(1)
        if line.ended == "closed" and line.reader.answers:
            line.reader.answers[0].complete = True  # the connection's end is the end of the response
        self._tell(line, ask)

    async def _slow(self, line: Line) -> None:
        ask = self._visit.asks[0]
        await line.send(ask.head() + ask.body)
        until = time.monotonic() + self._visit.seconds
        while time.monotonic() < until and await line.receive(1):
            await asyncio.sleep(1.0)
        await line.answers(1)
        self._tell(line, ask)

    async def _stall(self, line: Line) -> None:
        ask = self._visit.asks[0]
        await line.send(ask.head() + ask.body)
        await line.receive(256)
        await asyncio.sleep(self._visit.seconds)
        self._tell(line, ask, left=not line.ended)

    async def _leave(self, line: Line) -> None:
        visit, ask = self._visit, self._visit.asks[0]
        head, body, phase = ask.head(), ask.body, self._visit.phase
        if phase == "head":
            await line.send(head[: len(head) // 2])
        elif phase == "body":
            await line.send(head + body[: len(body) // 2])
        elif phase != "connected":
            await line.send(b"".join(one.head() + one.body for one in visit.asks))
        if phase in ("first", "middle"):
            await line.receive()
        if phase == "middle":
            for _ in range(5):
                await line.receive()
        if phase != "sent":
            await asyncio.sleep(visit.seconds)
        self._tell(line, ask, left=not line.ended)


def _ends_connection(answer: Answer) -> bool:
    return answer.headers.get("connection") == "close" or b'"error"' in b"".join(answer.parts[-2:])
