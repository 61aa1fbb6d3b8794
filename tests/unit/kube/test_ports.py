"""Ports for servers: free, below the kernel's range for clients, each given once."""

import socket
from contextlib import closing
from pathlib import Path

import pytest

from eldr_kube import ports


def kernels_range() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_ports_differ_and_lie_below_those_that_connections_get():
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    assert max(found) < kernels_range()


def test_a_row_passes_over_ports_in_use(monkeypatch):
    first = ports.free_port(in_a_row=4)
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", first + 2))
        tries = iter([first, first + 1, first + 3])
        monkeypatch.setattr(ports.random, "randrange", lambda *_: next(tries))
        assert ports.free_port(in_a_row=2) == first, "neither is in use"
        assert ports.free_port(in_a_row=2) == first + 3, "the second of the first try is in use"


def test_that_none_is_free_is_an_error(monkeypatch):
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", ports.free_port()))
        monkeypatch.setattr(ports, "_RANGE", (server.getsockname()[1], server.getsockname()[1] + 2))
        monkeypatch.setattr(ports.random, "randrange", lambda *_: server.getsockname()[1])
        with pytest.raises(OSError, match="no 1 free ports in a row"):
            ports.free_port()
