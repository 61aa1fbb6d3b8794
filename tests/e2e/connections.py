"""Which pod talks to which, as the kernel has it: pods are processes with an address of their own here, and no policy is enforced.

It is a sample of TCP over IPv4: what opens and closes within a few hundredths of a second is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_ESTABLISHED = "01"
_PODS = range(16, 251)
"""Second bytes of the addresses that node agents give to pods."""
EVERY_SECONDS = 0.05


class Connection(NamedTuple):
    """From a pod's process, by the pod's name, to an address and port."""

    source: str
    address: str
    port: int


class Connections:
    """Looks while its ``with`` block runs; ``seen`` are the connections that pods opened to pods."""

    def __init__(self) -> None:
        self.seen: set[Connection] = set()
        self._known: set[str] = set()
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
            new = {inode: to for inode, to in _outgoing() if inode not in self._known}
            for inode, name in _owners(new) if new else ():
                self._known.add(inode)
                if name:
                    self.seen.add(Connection(name, *new[inode]))


def _outgoing() -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the inode and the far end of each open connection to a pod."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        address, port = fields[2].split(":")
        numbers = bytes.fromhex(address)[::-1]  # as a little-endian processor shows it
        if fields[3] == _ESTABLISHED and numbers[0] == 127 and numbers[1] in _PODS:
            yield fields[9], (".".join(map(str, numbers)), int(port, 16))


def _owners(inodes: dict[str, tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """Yield sockets, each with the name of the pod whose process holds it; empty for other processes."""
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
        name = environment.get("HOSTNAME", "") if "KUBERNETES_SERVICE_HOST" in environment else ""
        for link in held & wanted.keys():
            yield wanted[link], name
