"""Requests in flight of the other routers, asked for a few times a second."""

from __future__ import annotations

import asyncio
import logging

import orjson

from eldr.contract import PATH_COUNTS
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.serve.services import Services
from eldr_router.state.control import Control

log = logging.getLogger(__name__)

_PERIOD = 0.25
_PATIENCE = 1.0
_MAX_ANSWER = 1 << 20


class Peers:
    """Polls every other router's counts.

    Parameters
    ----------
    services : Services
    control : Control
        Knows who the others are.
    token : str
        Bearer token of their admin ports.
    """

    def __init__(self, services: Services, control: Control, token: str) -> None:
        self._services = services
        self._control = control
        self._authorization = [(b"authorization", f"Bearer {token}".encode())] if token else []

    async def run(self) -> None:
        """Poll for ever: one task per peer, so that a slow one delays nobody."""
        tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        try:
            while True:
                for address in [address for address in tasks if address not in self._control.peers]:
                    tasks.pop(address).cancel()
                for address in self._control.peers:
                    if address not in tasks or tasks[address].done():
                        tasks[address] = self._services.loop.create_task(self._ask(address))
                await asyncio.sleep(_PERIOD)
        finally:
            for task in tasks.values():
                task.cancel()

    async def _ask(self, address: tuple[str, int]) -> None:
        host, port = address
        try:
            pool, headers = self._services.pool, self._authorization
            got = await fetch(
                pool, address, PATH_COUNTS, headers=headers, patience=_PATIENCE, limit=_MAX_ANSWER
            )
            counts = parse_counts(got.status, got.body)
        except (ConnectError, BrokenError, ValueError) as error:
            log.debug("no counts from %s:%d: %s", host, port, error)
            return
        router, in_flight = counts
        if router != self._services.router:
            self._services.registry.set_peer(router, in_flight)


def parse_counts(status: int, body: bytes) -> tuple[str, dict[str, int]]:
    """Read another router's counts.

    Raises
    ------
    ValueError
        If the answer is none.
    """
    fields = orjson.loads(body)
    if status == 200 and isinstance(fields, dict) and fields.get("v") == 1:
        router, in_flight = fields.get("router"), fields.get("in_flight")
        if isinstance(router, str) and isinstance(in_flight, dict):
            return router, {str(name): max(0, int(count)) for name, count in in_flight.items()}
    raise ValueError(f"status {status}, not a counts object of version 1")
