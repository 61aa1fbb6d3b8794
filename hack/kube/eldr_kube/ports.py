"""Ports of loopback for servers that are started with a port given."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import random
import socket
from contextlib import ExitStack
from typing import Final

# Below the range that the kernel gives to clients (from 32768): a port of that range could be taken by any
# connection before the server that it was found for binds it.
_RANGE: Final = (20000, 32000)
_SHARE: Final = 200


class Ports:
    """Ports of a share of the range that belongs to this process alone, so that no other finds one before its server binds it.

    The reservation is the name of an abstract Unix socket, so the kernel frees it however the process ends.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        shares = list(range(*_RANGE, _SHARE))
        random.shuffle(shares)
        for first in shares:
            try:
                self._socket.bind(f"\0eldr-ports-{first}")
            except OSError:
                continue
            break
        else:
            self._socket.close()
            raise OSError(f"every share of the ports {_RANGE[0]} to {_RANGE[1]} is taken by another process")
        self._first = first
        self._offsets = itertools.cycle(range(_SHARE))

    def take(self, in_a_row: int) -> int:
        """Return the first of so many ports that are free; what was found before comes round last; OSError if there are none."""
        for offset in itertools.islice(self._offsets, _SHARE):
            if offset + in_a_row <= _SHARE and _free(self._first + offset, in_a_row):
                for _ in range(in_a_row - 1):
                    next(self._offsets)
                return self._first + offset
        raise OSError(
            f"no {in_a_row} free ports in a row on 127.0.0.1 from {self._first} to {self._first + _SHARE}"
        )

    def close(self) -> None:
        """Give up the reservation."""
        self._socket.close()


def free_port(in_a_row: int = 1) -> int:
    """Return a loopback port that is free, as are those after it, so many in a row; OSError if there is none."""
    return _of(os.getpid()).take(in_a_row)


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free, each another, in no order; OSError if there are not so many."""
    return [free_port() for _ in range(count)]


@functools.cache
def _of(process: int) -> Ports:  # noqa: ARG001 - one that was forked has a share of its own
    ports = Ports()
    atexit.register(ports.close)
    return ports


def _free(first: int, in_a_row: int) -> bool:
    with ExitStack() as row:
        try:
            for port in range(first, first + in_a_row):
                row.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
