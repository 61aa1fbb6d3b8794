"""Carries the plan of disturbances out, and remembers what was disturbed when."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from tests.support.soak.judge import Window
from tests.support.soak.plan import LEASE, Disturbance, Reload
from tests.support.soak.stage import Stage

_TIGHT = 64
_BEFORE_FREEZE = 0.6
_BEFORE_THAW = 0.8
_BUSY_SECONDS = 0.05
_GET = b"GET /health HTTP/1.1\r\nhost: soak\r\n"
_BUSY = (_GET + b"\r\n") * 8_000 + _GET + b"connection: close\r\n\r\n"


class Director:
    """Disturbs the processes of a stage.

    Parameters
    ----------
    stage : Stage

    Attributes
    ----------
    windows : list of Window
    done : Counter
        Disturbances by kind.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.windows: list[Window] = []
        self.done: Counter[str] = Counter()
        self._coming_back: set[asyncio.Task[None]] = set()

    async def disturb(self, plan: Sequence[Disturbance]) -> None:
        """Do one after the other; an engine that is not back yet is spared."""
        began = time.monotonic()
        for one in plan:
            await asyncio.sleep(max(0.0, began + one.at - time.monotonic()))
            engines = tuple(name for name in one.engines if self._stage.engines[name].up)
            if one.engines and not engines:
                continue
            self.done[one.kind] += 1
            what = f"{one.kind} {' '.join(engines)} {one.seconds:.1f} s"
            ports = self._stage.ports[-1:] if one.kind == "alone" else self._stage.ports
            window = Window(one.kind, time.time(), what=what, ports=tuple(ports))
            self.windows.append(window)
            if one.kind == "kill":
                task = asyncio.create_task(self._kill(engines, one.seconds, window))
                self._coming_back.add(task)
                await asyncio.sleep(one.seconds)
                continue
            await getattr(self, f"_{one.kind}")(engines, one.seconds)
            window.ended = time.time()
        await asyncio.gather(*self._coming_back)

    async def reload(self, plan: Sequence[Reload]) -> None:
        """Change the worker files at their times."""
        began = time.monotonic()
        tight: Window | None = None
        for one in plan:
            await asyncio.sleep(max(0.0, began + one.at - time.monotonic()))
            if tight is not None:
                tight.ended, tight = time.time(), None
            self.done["reload"] += 1
            what = f"without {one.without}, dead: {one.dead}, {one.fields}"
            ports = tuple(self._stage.ports)
            self.windows.append(Window("reload", time.time(), time.time(), what, ports))
            if one.fields["max_in_flight"] < _TIGHT:
                tight = Window("tight", time.time(), what=what, ports=ports)
                self.windows.append(tight)
            self._stage.configure(one)

    async def _kill(self, engines: Sequence[str], seconds: float, window: Window) -> None:
        for name in engines:
            self._stage.engines[name].kill()
        await asyncio.sleep(seconds)
        await asyncio.gather(*(self._stage.restart(name) for name in engines))
        window.ended = time.time()

    async def _stop(self, engines: Sequence[str], seconds: float) -> None:
        self._signal(engines, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._signal(engines, signal.SIGCONT)

    async def _freeze(self, engines: Sequence[str], seconds: float) -> None:
        del engines
        async with self._busy():
            self._stage.freeze()
            await asyncio.sleep(seconds)
            self._stage.freeze(thaw=True)

    async def _alone(self, engines: Sequence[str], seconds: float) -> None:
        del engines
        self._stage.freeze(first=-1)
        await asyncio.sleep(seconds)
        self._stage.freeze(thaw=True, first=-1)

    async def _late(self, engines: Sequence[str], seconds: float) -> None:
        """Let results reach engines that stand still, and their answers routers that stand still, both too late."""
        del seconds
        self._signal(engines, signal.SIGSTOP)
        await asyncio.sleep(_BEFORE_FREEZE)
        async with self._busy():
            self._stage.freeze()
            await asyncio.sleep(LEASE)
            self._signal(engines, signal.SIGCONT)
            await asyncio.sleep(_BEFORE_THAW)
            self._stage.freeze(thaw=True)

    @contextlib.asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        """Have the routers stand still in the middle of work.

        One that stands still while it waits is woken by its timers first, which end what is late; one in the middle of
        work reads first what has come meanwhile.
        """
        tasks = [asyncio.create_task(_occupy(port)) for port in self._stage.ports]
        await asyncio.sleep(_BUSY_SECONDS)
        yield
        await asyncio.gather(*tasks, return_exceptions=True)

    def _signal(self, engines: Sequence[str], number: int) -> None:
        for name in engines:
            self._stage.engines[name].signal(number)


async def _occupy(port: int) -> None:
    """Give a router some tenths of a second of work."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_BUSY)
    while await reader.read(1 << 16):
        pass
    writer.close()
