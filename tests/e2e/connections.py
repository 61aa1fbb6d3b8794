"""Which pod talks to which, as the kernel has it: pods are processes with an address of their own here, and no policy is enforced.

It is a sample of TCP over IPv4, twice a second: the load is made by the process that looks, and must not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.e2e.meanwhile import Meanwhile

_LOOKS_PER_SEARCH = 10
"""New processes are looked for less often."""
_ESTABLISHED = "01"
_PODS = range(16, 251)
"""Second bytes of the addresses that node agents give to pods."""


class Connection(NamedTuple):
    """From a pod's process, by the pod's name, to an address and port."""

    source: str
    address: str
    port: int


class Connections(Meanwhile):
    """``seen`` are connections that pods opened to pods."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Connection] = set()
        self._looks, self._pods = 0, dict[Path, str]()

    def _look(self) -> None:
        if self._looks % _LOOKS_PER_SEARCH == 0:
            self._pods = dict(_processes())
        self._looks += 1
        open_ = dict(_outgoing())
        for process, name in self._pods.items():
            self.seen |= {Connection(name, *open_[inode]) for inode in _sockets(process) & open_.keys()}


def _outgoing() -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the inode and the far end of each open connection to a pod."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        address, port = fields[2].split(":")
        numbers = bytes.fromhex(address)[::-1]  # as a little-endian processor shows it
        if fields[3] == _ESTABLISHED and numbers[0] == 127 and numbers[1] in _PODS:
            yield fields[9], (".".join(map(str, numbers)), int(port, 16))


def _processes() -> Iterator[tuple[Path, str]]:
    """Yield the processes of pods, each with the pod's name."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            text = (process / "environ").read_text(errors="replace")
        except OSError:
            continue
        environment = dict(entry.partition("=")[::2] for entry in text.split("\0"))
        if "KUBERNETES_SERVICE_HOST" in environment and "HOSTNAME" in environment:
            yield process, environment["HOSTNAME"]


def _sockets(process: Path) -> set[str]:
    """Return the inodes of a process's sockets."""
    try:
        links = [str(each.readlink()) for each in (process / "fd").iterdir()]
    except OSError:
        return set()
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
