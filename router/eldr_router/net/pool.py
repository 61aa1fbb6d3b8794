"""Idle and busy connections to all engines and other routers."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Mapping

from eldr import admin_tls
from eldr.addresses import Address, authority
from eldr_router.net.outbound import ConnectError, EngineConnection

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
_MAX_IDLE = 256
DEAF_SECONDS = 30.0
"""Longest silence of who accepts no connections any more: a server that shuts down and waits for answers that never come."""


class Pool:
    """Keeps connections between exchanges.

    Parameters
    ----------
    loop : AbstractEventLoop
    connect_timeout : float
        Seconds.
    trust : callable
        Returns whom to trust where TLS is spoken.

    Attributes
    ----------
    names : mapping
        Addresses where TLS is spoken, and the name that the certificate there must be for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        connect_timeout: float,
        trust: Callable[[], ssl.SSLContext] = admin_tls.unverified,
    ) -> None:
        self.loop = loop
        self.names: Mapping[Address, str] = {}
        self._trust = trust
        self._connect_timeout = connect_timeout
        self._idle: dict[Address, list[EngineConnection]] = {}
        self._all: set[EngineConnection] = set()
        self._deaf: dict[Address, float] = {}  # seconds since connections were refused first

    def __len__(self) -> int:
        return len(self._all)

    def idle(self, address: Address) -> EngineConnection | None:
        """Return a connection that is open already, to who is trusted still."""
        idle, trust = self._idle.get(address), self._trusted(address)
        while idle:
            connection = idle.pop()
            if connection.trust is not trust:
                connection.close()
            elif connection.take():
                return connection
        return None

    async def dial(self, address: Address) -> EngineConnection:
        """Return a new connection; ConnectError if none is made in time."""
        host, port = address
        name, trust = self.names.get(address), self._trusted(address)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self.loop.create_connection(
                    lambda: EngineConnection(self, address),
                    host,
                    port,
                    ssl=trust,
                    server_hostname=name,
                )
        except TimeoutError:
            raise ConnectError(
                f"{authority(host, port)} did not accept a connection in {self._connect_timeout:g} s"
            ) from None
        except (OSError, UnicodeError) as error:  # the latter: a host that is no name
            if isinstance(error, ConnectionRefusedError):
                self._deaf.setdefault(address, 0.0)
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                raise ConnectError(f"this router cannot open a connection: {error}", own=True) from None
            distrust = admin_tls.distrust(error)
            reason = distrust or str(error)
            raise ConnectError(f"{authority(host, port)}: {reason}", distrust=distrust) from None
        self._deaf.pop(address, None)
        if not connection.is_open:
            raise ConnectError(f"{authority(host, port)} closed the connection at once")
        connection.trust = trust
        self._all.add(connection)
        return connection

    def _trusted(self, address: Address) -> ssl.SSLContext | None:
        return self._trust() if address in self.names else None

    def put(self, connection: EngineConnection) -> None:
        """Take a connection back after a clean exchange."""
        idle = self._idle.setdefault(connection.address, [])
        if len(idle) >= _MAX_IDLE:
            connection.close()
        else:
            idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        """Drop a connection that was lost."""
        self._all.discard(connection)
        idle = self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)
        if not idle:
            self._idle.pop(connection.address, None)

    def sweep(self, elapsed: float) -> None:
        """Let silence count on every connection. Called about once a second."""
        for connection in self._all:
            connection.age(elapsed)
        known = {connection.address for connection in self._all}
        self._deaf = {address: since + elapsed for address, since in self._deaf.items() if address in known}
        for connection in list(self._all):  # only then: what ends here may begin anew on another one
            if self._deaf.get(connection.address, 0.0) > DEAF_SECONDS:
                connection.abandon(DEAF_SECONDS)
            connection.expire()

    def close(self) -> None:
        """Cut everything."""
        for connection in list(self._all):
            connection.close()
