"""The other routers: asked for their counts many times a second while there is traffic, seldom otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from eldr.addresses import authority
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.plan import tables
from eldr_router.plan.members import Address
from eldr_router.plan.reports import question, read_report
from eldr_router.serve.services import Services
from eldr_router.state.tables import Tables

log = logging.getLogger(__name__)

_PERIOD = 0.02
_SPACING = 0.005
"""While anybody has sequences, or a share is to be confirmed, every other router is asked once a period, and all of them
together at most once a spacing: ``python -m eldr_lab.studies.peers`` shows what that gives, and costs."""
_IDLE_PERIOD = 0.25
_PATIENCE = 1.0
_MAX_ANSWER = 4 << 20


class Peers:
    """Asks every other router.

    Parameters
    ----------
    services : Services
        Its registry's shares know who the others are, and get what they answer.
    token : callable
        Returns the bearer token of their admin ports; empty for none.
    is_leaving : callable
        Whether this router takes no requests any more.
    """

    def __init__(self, services: Services, token: Callable[[], str], is_leaving: Callable[[], bool]) -> None:
        self._services = services
        self._shares = services.registry.shares
        self._is_leaving = is_leaving
        self._tables = Tables(services.placer.locality)
        self._token = token

    async def run(self) -> None:
        """Ask for ever: one task per peer, so that a slow one delays nobody."""
        tasks: dict[Address, asyncio.Task[None]] = {}
        try:
            while True:
                for address in [address for address in tasks if address not in self._shares.peers]:
                    tasks.pop(address).cancel()
                for address in self._shares.peers:
                    if address not in tasks or tasks[address].done():
                        tasks[address] = self._services.loop.create_task(self._follow(address))
                self._tables.retain(set(self._shares.peers))
                self._tables.expire(self._services.clock())
                self._services.registry.pass_time()
                self._services.registry.give(leaving=self._is_leaving())
                await asyncio.sleep(self._pause())
        finally:
            for task in tasks.values():
                task.cancel()

    def _pause(self) -> float:
        if not (self._shares.peers and (self._shares.awaited or self._services.registry.is_busy)):
            return _IDLE_PERIOD
        return max(_PERIOD, _SPACING * len(self._shares.peers))

    async def _follow(self, address: Address) -> None:
        while True:
            before = self._problem(address)
            await self._ask(address)
            problem = self._problem(address)
            if problem != before:
                if problem is None:
                    log.info("router at %s answers", authority(*address))
                else:
                    log.warning("router at %s: %s", authority(*address), problem)
            await asyncio.sleep(_IDLE_PERIOD if problem else self._pause())

    def _problem(self, address: Address) -> str | None:
        peer = self._shares.peers.get(address)
        return peer.problem if peer else None

    async def _ask(self, address: Address) -> None:
        shares = self._shares
        try:
            async with asyncio.timeout(_PATIENCE):
                status, body = await self._fetch(address, question(shares.router))
            report = read_report(status, body)
        except ConnectError as error:
            if error.refused:
                shares.refused(address)
            else:
                shares.silent(address, error.distrust or "does not accept connections")
        except (TimeoutError, BrokenError, ValueError) as error:
            cause = getattr(error, "cause", None)
            if cause == "stale":
                return  # a pooled connection had ended; the next question opens another one
            timed_out = isinstance(error, TimeoutError) or cause == "timeout"
            what = f"does not answer within {_PATIENCE:g} s" if timed_out else str(error)
            shares.silent(address, what)
        else:
            shares.heard(address, report, self._services.clock())
            self._services.queue.wake()
            if report.router != shares.router:  # a list may hold this router's own address
                await self._ask_tables(address)

    async def _ask_tables(self, address: Address) -> None:
        clock = self._services.clock
        wanted = self._tables.question(address, clock(), len(self._shares.peers))
        if wanted is None:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                status, body = await self._fetch(address, tables.question(*wanted))
            told = tables.read_answer(status, body)
        except (ConnectError, BrokenError, TimeoutError, ValueError) as error:
            if self._tables.failed(address, clock()):
                text = "router at %s reports no unions; its requests count as the pool's mean: %s"
                log.warning(text, authority(*address), str(error) or "no answer")
        else:
            self._tables.heard(address, told, clock())

    async def _fetch(self, address: Address, path: str) -> tuple[int, bytes]:
        """Get a path of another router's admin port."""
        pool, token = self._services.pool, self._token()
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        answer = await fetch(pool, address, path, headers=headers, patience=_PATIENCE, limit=_MAX_ANSWER)
        return answer.status, answer.body
