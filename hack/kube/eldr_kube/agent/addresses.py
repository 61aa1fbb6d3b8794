"""Loopback addresses: one for every pod."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator

_LAST = 254


class Addresses:
    """A part of 127.0.0.0/8 that belongs to this agent alone while it lives: 127.x.y.0/20, without .0 and .255.

    The reservation is the name of an abstract Unix socket, so the kernel frees it however the agent ends.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        blocks = [(second, third) for second in range(16, 251) for third in range(0, 256, 16)]
        random.shuffle(blocks)
        for second, third in blocks:
            try:
                self._socket.bind(f"\0eldr-kube-127.{second}.{third}")
            except OSError:
                continue
            break
        else:
            raise OSError("every part of 127.0.0.0/8 is taken by another node agent")
        self._all = [
            f"127.{second}.{third + low}.{last}" for low in range(16) for last in range(1, _LAST + 1)
        ]
        self._row: Iterator[str] = itertools.cycle(self._all)
        self._taken: set[str] = set()

    def take(self) -> str:
        """Return an address that no pod uses; one that was given back comes round last; OSError if there is none."""
        for address in itertools.islice(self._row, len(self._all)):
            if address not in self._taken:
                self._taken.add(address)
                return address
        raise OSError(f"all {len(self._all)} addresses of this agent are in use")

    def give_back(self, address: str) -> None:
        """Free an address."""
        self._taken.discard(address)

    def close(self) -> None:
        """Give up the reservation."""
        self._socket.close()
