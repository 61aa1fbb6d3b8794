"""The processes of a soak: engines that are killed and come back, routers, and what they hold."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Self

from eldr_kube.ports import free_port, free_ports
from tests.support.processes import ELDR, START_SECONDS, Server, wait_for
from tests.support.router import Router
from tests.support.soak.flat import Sample
from tests.support.soak.plan import LEASE, Reload, usual

_ROUTER = (
    *("--access-log", "--log-level", "info", "--prefill-timeout-seconds", "10"),
    *("--decode-idle-timeout-seconds", "20"),
)
_ENGINE = (
    *("--model", "m", "--speed", "0.5", "--lease-seconds", str(LEASE)),
    *("--max-num-seqs", "4096", "--kv-blocks", str(1 << 22)),
)


class Engine:
    """A simulated engine at a port that stays its own.

    Parameters
    ----------
    folder : Path
        For its log.
    name : str
    options : tuple of str

    Attributes
    ----------
    up : bool
        It serves, and is not on its way back.
    """

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        role = "prefill" if name.startswith("p") else "decode"
        port = free_port()
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self._arguments = [
            *(str(ELDR), "engine-sim", "--role", role, "--port", str(port)),
            *(*_ENGINE, *options),
        ]
        self.up = False
        self._server: Server | None = None

    def start(self) -> None:
        self._server = Server(self._arguments, self.url, log=self.log)

    def ready(self) -> bool:
        self.up = self._server is not None and self._server.ready()
        return self.up

    def kill(self) -> None:
        server, self._server = self._server, None
        self.up = False
        if server is not None:
            server.process.kill()
            server.process.wait()

    def signal(self, number: int) -> None:
        if self._server is not None:
            self._server.process.send_signal(number)


class Stage:
    """All processes of one round; a context manager.

    Parameters
    ----------
    folder : Path
    routers : int
    prefill, decode : int
        Engines. Every other decode engine knows no deadline of pulls: what keeps late results from clients there is the
        router alone.
    """

    def __init__(self, folder: Path, *, routers: int = 1, prefill: int = 2, decode: int = 4) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._routers = routers
        names = [f"p{i}" for i in range(prefill)]
        self.engines = {name: Engine(folder, name) for name in names}
        for i in range(decode):
            options = ("--ignore-deadlines",) if i % 2 else ()
            self.engines[f"d{i}"] = Engine(folder, f"d{i}", *options)
        self.routers: list[Router] = []

    def names(self, role: str) -> list[str]:
        """Engines of a role, by its first letter."""
        return [name for name in self.engines if name.startswith(role)]

    @property
    def ports(self) -> list[int]:
        return [int(router.url.rsplit(":", 1)[1]) for router in self.routers]

    def log(self, index: int) -> Path:
        """Return where a router's messages go."""
        return self._folder / f"router{index}.log"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        for engine in self.engines.values():
            engine.start()
        for engine in self.engines.values():
            wait_for(engine.ready, f"engine {engine.name}", 3 * START_SECONDS)
        ports = free_ports(self._routers)
        for index, port in enumerate(ports):
            others = [f"http://127.0.0.1:{other}" for other in ports if other != port]
            self._add_router(index, port, [option for url in others for option in ("--peer", url)])
        for router in self.routers:
            wait_for(lambda r=router: r.ready("/ready"), "router", 3 * START_SECONDS)
        # every other engine, as one without the plug-in, reports no load
        wanted = {name for name in self.names("d") if int(name[1:]) % 2 == 0}
        for router in self.routers:
            wait_for(
                lambda r=router: {e["name"] for e in r.state()["decode"] if e["reports"]} == wanted,
                "the reports of engines",
                START_SECONDS,
            )

    def _add_router(self, index: int, admin_port: int, peers: list[str]) -> None:
        urls = {name: engine.url for name, engine in self.engines.items()}
        folder = self._folder / f"router{index}"
        self.routers.append(
            Router(
                folder, urls, *_ROUTER, *peers, log=self.log(index), admin_port=admin_port, **usual().fields
            ),
        )

    def stop(self) -> None:
        """End everything that was started here."""
        self.freeze(thaw=True)
        for engine in self.engines.values():
            engine.kill()
        for router in self.routers:
            router.stop()

    def freeze(self, *, thaw: bool = False, first: int = 0) -> None:
        """Let routers stand still, or go on: all, or those from the ``first`` on."""
        for router in self.routers[first:]:
            if router.process.poll() is None:
                router.process.send_signal(signal.SIGCONT if thaw else signal.SIGSTOP)

    def configure(self, reload: Reload) -> None:
        """Write the worker files anew."""
        urls = {name: e.url for name, e in self.engines.items() if name not in reload.without}
        if reload.dead:
            urls["d-dead"] = f"http://127.0.0.1:{free_port()}"
        for router in self.routers:
            router.configure(urls, **reload.fields)

    async def restart(self, name: str) -> None:
        """Start an engine that was killed, and wait until it serves."""
        engine = self.engines[name]
        engine.start()
        async with asyncio.timeout(3 * START_SECONDS):
            while not await asyncio.to_thread(engine.ready):
                await asyncio.sleep(0.1)

    def samples(self, at: float) -> list[Sample]:
        """What every router holds now."""
        return [Sample(at, memory(r.process.pid), len(files(r.process.pid))) for r in self.routers]


def memory(pid: int) -> int:
    """Return a process's resident bytes."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def files(pid: int) -> set[str]:
    """Return what a process has open: paths, and sockets by their number."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(str(entry.readlink()))
        except OSError:
            continue
    return found


def connections(pid: int, ports: set[int]) -> int:
    """Return how many connections a process has open to these ports."""
    own = {name[8:-1] for name in files(pid) if name.startswith("socket:")}
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port, is_established = int(fields[2].partition(":")[2], 16), fields[3] == "01"
        count += is_established and port in ports and fields[9] in own
    return count
