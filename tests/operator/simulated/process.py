"""The operator's own program in the process of a test: a simulated cluster in the place of kopf and the network."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from http import HTTPStatus
from urllib.parse import urlsplit

import aiohttp

from eldr_operator.errors import OperatorError
from eldr_operator.kube.cache import WATCHED
from eldr_operator.kube.streams import Stream
from eldr_operator.kube.tokens import Tokens
from eldr_operator.locality.routers import StatusError
from eldr_operator.metrics import Metrics
from eldr_operator.settings import Settings
from eldr_operator.startup import Program, assembled
from tests.fakes.kubernetes.server import Client, Watches
from tests.fakes.kubernetes.simulation import SimulatedKube, Simulation
from tests.operator.routers import RouterState
from tests.support.kube import Refused

RESYNC_SECONDS = 30.0
_KEY = b"k" * 32
_AGAIN_SECONDS = 1.0


class SimulatedRouter(RouterState):
    """A router at an address of the simulated network.

    Attributes
    ----------
    is_hung : bool
        Whether it takes requests and never answers.
    """

    def __init__(self, kube: SimulatedKube, deployment: str) -> None:
        super().__init__(kube, deployment)
        self._addresses = kube.simulation.addresses
        self.address = f"router-{next(kube.simulation.numbers)}"
        self.is_hung = False
        self._addresses[self.address] = self

    def close(self) -> None:
        del self._addresses[self.address]


class SimulatedOperator:
    """One operator; it is started again where it ends by itself, as a kubelet does.

    Parameters
    ----------
    lease : str
        Operators with different ones are other releases.
    """

    def __init__(self, simulation: Simulation, *, lease: str = "eldr-operator") -> None:
        self.simulation = simulation
        self.ahead = timedelta(0)
        self._draw = random.Random(simulation.draw.random())
        self._lease = lease
        self._identities = itertools.count()
        self._life: asyncio.Task[None] | None = None
        self._program: Program | None = None
        self._watches: Watches | None = None
        self.client = Client(simulation.store, self._draw)

    def start(self) -> None:
        """Start it."""
        self._life = self.simulation.loop.create_task(self._live())
        self.simulation.programs.append(self._life)

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        life, self._life = self._life, None
        if life is not None:
            self.simulation.programs.remove(life)
            life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self.simulation.loop.run_until_complete(life)

    def stop(self) -> None:
        """End it, and let another one act at once."""
        program = self._program
        self.kill()
        if program is not None:
            self.simulation.loop.run_until_complete(program.served.release())
            self.simulation.loop.run_until_complete(program.lease.release())

    def acts(self) -> bool:
        """Tell whether it is not a standby."""
        return self._program is not None and self._program.lease.held.is_set()

    def sees(self) -> bool:
        """Tell whether it acts, and nothing keeps it from reading and writing."""
        return (
            self.acts()
            and not self.client.faults
            and self.client.stands.is_set()
            and not (self._watches and self._watches.is_broken)
        )

    @contextlib.contextmanager
    def blind(self) -> Iterator[None]:
        """Break its watches; they begin anew."""
        if self._program and self._watches:
            self._watches.is_broken = True
            watches = self._program.streams.watches
            for kind in WATCHED:
                watches.fails(Stream(kind, None))
        yield
        if self._program and self._watches:
            self._program.streams.watches.failing.clear()
            self._watches.again()

    def _now(self) -> datetime:
        return self.simulation.now() + self.ahead

    async def _live(self) -> None:
        while True:
            try:
                await self._run(f"operator-{id(self)}-{next(self._identities)}")
            except* OperatorError:
                await asyncio.sleep(_AGAIN_SECONDS)  # it has lost its Lease

    async def _run(self, identity: str) -> None:
        settings = Settings(
            lease_namespace="eldr-system",
            lease=self._lease,
            identity=identity,
            resync_seconds=RESYNC_SECONDS,
            image="eldr:test",
        )
        client, time = self.client, self.simulation.loop.time
        program = assembled(
            client, self._fetch, Tokens(_KEY), settings, Metrics(), clock=self._now, monotonic=time
        )
        watches = Watches(self.simulation.store, self._draw, program.manager.changed, client)
        watches.again()
        self._program, self._watches = program, watches
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(program.manager.run())
                group.create_task(program.lease.run())
        finally:
            self._program = self._watches = None
            watches.close()
            program.polls.close()

    async def _fetch(self, url: str, token: str) -> bytes:
        await asyncio.sleep(self._draw.expovariate(200))
        at = urlsplit(url)
        router = self.simulation.addresses.get(at.hostname or "")
        if router is None:
            raise OSError("no route to host")
        if router.is_hung:
            await asyncio.sleep(3.0)
            raise TimeoutError("no answer")
        try:
            status, body = router.answer(at.path, f"Bearer {token}")
        except Refused:
            raise aiohttp.ServerDisconnectedError("its deployment is gone") from None
        if status != HTTPStatus.OK:
            raise StatusError(status)
        return body
