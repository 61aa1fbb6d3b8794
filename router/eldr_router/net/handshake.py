"""Clients in their TLS handshake.

Each holds a descriptor, so it counts, and is cut where there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import cast

from eldr_router.net.inbound import Server

HANDSHAKE_SECONDS = 15.0


class Handshake(asyncio.Protocol):
    """Hands a connection over to one that speaks TLS, or cuts it."""

    def __init__(self, server: Server, tls: ssl.SSLContext) -> None:
        self._server = server
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, if there is room for one more."""
        server, raw = self._server, cast("asyncio.Transport", transport)
        if len(server.connections) + len(server.handshakes) < server.max_connections + server.max_refused:
            # event loops count no handshakes of their own servers, and report none that fail
            with contextlib.suppress(OSError):
                task = server.loop.create_task(self._agree(raw.get_extra_info("socket").dup()))
                server.handshakes.add(task)
                task.add_done_callback(server.handshakes.discard)
        raw.abort()

    async def _agree(self, taken: socket.socket) -> None:
        with contextlib.suppress(OSError):  # of a client that speaks something else, or nothing
            await self._server.loop.connect_accepted_socket(
                self._server.protocol, taken, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
