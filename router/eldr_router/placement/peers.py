"""The other routers: asked for the experts of their requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from eldr.addresses import Address, authority
from eldr_router.engines.registry import Peer, Registry
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.net.pool import Pool
from eldr_router.placement import exchange
from eldr_router.placement.locality import Locality
from eldr_router.placement.peer_unions import PeerUnions

log = logging.getLogger(__name__)

_PERIOD, _SPACING = 0.25, 0.025
"""Seconds between two questions to one router, and to any two."""
_RETRY_SECONDS = 1.0
_PATIENCE = 1.0
_MAX_ANSWER = 4 << 20


class Peers:
    """Asks every other router.

    Parameters
    ----------
    router : str
        The name of this router.
    registry : Registry
        Knows who the others are.
    pool : Pool
    locality : Locality
        Takes what they report.
    clock : callable
        Returns the time, seconds.
    token : callable
        Returns the bearer token of their admin ports; empty for none.
    """

    def __init__(
        self,
        *,
        router: str,
        registry: Registry,
        pool: Pool,
        locality: Locality,
        clock: Callable[[], float],
        token: Callable[[], str],
    ) -> None:
        self._router = router
        self._registry = registry
        self._pool = pool
        self._peer_unions = PeerUnions(locality)
        self._clock = clock
        self._token = token

    async def run(self) -> None:
        """Ask for ever: one task per peer, so that a slow one delays no other."""
        tasks: dict[Address, asyncio.Task[None]] = {}
        try:
            while True:
                peers = self._registry.peers
                for address in tasks.keys() - peers.keys():
                    tasks.pop(address).cancel()
                for address in peers:
                    if address not in tasks or tasks[address].done():
                        tasks[address] = asyncio.create_task(self._follow(address))
                self._peer_unions.retain(peers.keys())
                self._peer_unions.expire(self._clock())
                await asyncio.sleep(_PERIOD)
        finally:
            for task in tasks.values():
                task.cancel()

    async def _follow(self, address: Address) -> None:
        while (peer := self._registry.peers.get(address)) is not None:
            before, peer.problem = peer.problem, await self._ask(address, peer)
            if peer.problem != before:
                if peer.problem is None:
                    log.info("router at %s answers", authority(*address))
                else:
                    text = "router at %s reports no unions; its requests count as the pool's mean: %s"
                    log.warning(text, authority(*address), peer.problem)
            pause = max(_PERIOD, _SPACING * len(self._registry.peers))
            await asyncio.sleep(_RETRY_SECONDS if peer.problem else pause)

    async def _ask(self, address: Address, peer: Peer) -> str | None:
        """Ask a router for what changed; return why that could not be had."""
        headers = [(b"authorization", f"Bearer {token}".encode())] if (token := self._token()) else []
        path = exchange.question(*self._peer_unions.question(address))
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await fetch(
                    self._pool, address, path, headers=headers, patience=_PATIENCE, limit=_MAX_ANSWER
                )
            report = exchange.read_answer(answer.status, answer.body)
        except TimeoutError:
            return f"does not answer within {_PATIENCE:g} s"
        except ConnectError as error:
            return error.distrust or str(error)
        except (BrokenError, ValueError) as error:
            # a pooled connection may have ended: the next question opens another one
            return peer.problem if getattr(error, "cause", None) == "stale" else str(error)
        peer.answered_at = self._clock()
        if not report.source.startswith(f"{self._router}."):  # a list may hold this router's own address
            self._peer_unions.receive(address, report, peer.answered_at)
        return None
