"""Which pod talks to which, as the kernel has it: pods are processes with an address of their own here, and no policy is enforced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from eldr import contract

_ESTABLISHED = "01"
_PORTS = (contract.PORT_ROUTER, contract.PORT_ENGINE, contract.PORT_ADMIN)
EVERY_SECONDS = 0.05


class Connection(NamedTuple):
    """From a pod's process, by the pod's name, to an address and port."""

    source: str
    address: str
    port: int


class Connections:
    """Looks while its ``with`` block runs; ``seen`` are the connections that pods opened to ports of deployments."""

    def __init__(self) -> None:
        self.seen: set[Connection] = set()
        self._sockets: dict[str, tuple[str, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            new = {inode: to for inode, to in _outgoing() if inode not in self._sockets}
            if not new:
                continue
            self._sockets |= new
            for inode, name in _owners(new):
                self.seen.add(Connection(name, *new[inode]))


def _outgoing() -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the inode and the far end of each open connection to such a port."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        address, port = fields[2].split(":")
        if fields[3] == _ESTABLISHED and int(port, 16) in _PORTS:
            numbers = bytes.fromhex(address)[::-1]  # as a little-endian processor shows it
            yield fields[9], (".".join(map(str, numbers)), int(port, 16))


def _owners(inodes: dict[str, tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """Yield sockets of pods' processes, each with the pod's name."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            environment = dict(
                entry.partition("=")[::2] for entry in (process / "environ").read_text().split("\0")
            )
            held = {str(each.readlink()) for each in (process / "fd").iterdir()}
        except (OSError, UnicodeDecodeError):
            continue
        if "KUBERNETES_SERVICE_HOST" in environment:
            for link in held & wanted.keys():
                yield wanted[link], environment.get("HOSTNAME", "")
