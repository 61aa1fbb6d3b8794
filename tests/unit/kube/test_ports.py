"""Ports for servers: free, below the kernel's range for clients, each given once, to one process."""

import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from eldr_kube import ports
from eldr_kube.ports import Ports


@pytest.fixture
def mine():
    with closing(Ports()) as made:
        yield made


def kernels_range() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_ports_differ_and_lie_below_those_that_connections_get():
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    assert max(found) < kernels_range()


def test_no_two_processes_are_given_the_same(mine):
    with closing(Ports()) as other:
        found = [{each.take(1) for _ in range(300)} for each in (mine, other)]
    assert all(found)
    assert not found[0] & found[1]


def test_a_share_is_another_process_s_when_its_owner_has_ended(monkeypatch):
    # a name of its own: the shares of tests that run at the same time stay theirs
    monkeypatch.setattr(ports, "_RANGE", (19000, 19200))
    with closing(Ports()), pytest.raises(OSError, match="is taken by another process"):
        Ports()
    Ports().close()


def test_that_none_is_free_is_an_error(mine):
    with ExitStack() as stack, pytest.raises(OSError, match="no 1 free ports in a row"):
        while True:
            stack.enter_context(socket.socket()).bind(("127.0.0.1", mine.take(1)))
    with pytest.raises(OSError, match="no 201 free ports in a row"):
        mine.take(201)
