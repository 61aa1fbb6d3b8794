"""Ports of loopback for servers that are started with a port given."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

# Below the range that the kernel gives to clients (from 32768): a port of that range could be taken by any
# connection before the server that it was found for binds it.
_RANGE: Final = (20000, 32000)
_TRIES: Final = 1000


def free_port(in_a_row: int = 1) -> int:
    """Return a loopback port that is free, as are those after it, so many in a row.

    Raises
    ------
    OSError
        None is found.
    """
    with ExitStack() as stack:
        return _bind(in_a_row, stack)


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free, each another, in no order.

    Raises
    ------
    OSError
        So many are not found.
    """
    with ExitStack() as stack:
        return [_bind(1, stack) for _ in range(count)]


def _bind(in_a_row: int, stack: ExitStack) -> int:
    """Bind ports until `stack` ends, so that none is found twice; return the first of the row."""
    for _ in range(_TRIES):
        first = random.randrange(_RANGE[0], _RANGE[1] - in_a_row)
        with ExitStack() as row:
            try:
                for port in range(first, first + in_a_row):
                    row.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            stack.enter_context(row.pop_all())
            return first
    raise OSError(f"no {in_a_row} free ports in a row on 127.0.0.1 between {_RANGE[0]} and {_RANGE[1]}")
