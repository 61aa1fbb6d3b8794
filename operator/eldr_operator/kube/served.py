"""Which release serves a namespace: the one that renews the Lease there.

Two releases that wrote the same objects would undo each other for ever. So the operator that acts keeps a Lease in each namespace that holds
an EldrDeployment, in the name of its release: its standby goes on with it. Another release writes nothing there while that is renewed, and
for as long after it was given back: an upgrade gives it back for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping

from eldr import contract
from eldr_operator.clock import Clock
from eldr_operator.errors import ApiError, ApiUnavailableError
from eldr_operator.kube.api import Api
from eldr_operator.kube.lease import REQUEST_SECONDS, Claim

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
_AT_ONCE = 64
"""So that a round ends long before a Lease does: 300 namespaces at 2 s a request take 10 s."""


class Served:
    """The Leases of namespaces.

    Parameters
    ----------
    holder : str
        Name of the release.
    wanted : callable
        Returns the namespaces that are to be served.
    wake : callable
        Is called with a namespace that another release has served.
    """

    def __init__(
        self,
        api: Api,
        holder: str,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        wanted: Callable[[], Collection[str]],
        wake: Callable[[str], object],
    ) -> None:
        self._api, self._holder = api, holder
        self._clock, self._monotonic = clock, monotonic
        self._wanted, self._wake = wanted, wake
        self._claims: dict[str, Claim] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._others: dict[str, str] = {}
        self._problems: dict[str, str] = {}

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """Namespaces that other releases serve, and which."""
        return {namespace: other for namespace, other in self._others.copy().items() if other}

    async def other(self, namespace: str) -> str:
        """Return the other release that serves a namespace; empty where this one does.

        Raises
        ------
        ApiUnavailableError
            If that is not known yet, and cannot be read.
        """
        if (known := self._others.get(namespace)) is not None:
            return known  # also while it is renewed
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            if namespace not in self._others:
                await self._renew(namespace)
            return self._others[namespace]

    async def run(self) -> None:
        """Renew them until cancelled."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def renewed(namespace: str) -> None:
            async with slots, self._locks.setdefault(namespace, asyncio.Lock()):
                try:
                    await (self._renew(namespace) if namespace in wanted else self._release(namespace))
                except ApiUnavailableError as error:
                    self._failed(namespace, str(error))

        while True:
            wanted, began = {*self._wanted()}, self._monotonic()
            await asyncio.gather(*map(renewed, wanted | self._claims.keys()))
            await asyncio.sleep(max(0.0, _EVERY_SECONDS - (self._monotonic() - began)))

    async def release(self) -> None:
        """Give all back."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def released(namespace: str) -> None:
            async with slots:
                await self._release(namespace)

        await asyncio.gather(*map(released, [*self._claims]))

    async def _renew(self, namespace: str) -> None:
        if namespace not in self._claims:
            at = namespace, contract.SERVED_LEASE
            self._claims[namespace] = Claim(
                self._api, at, self._holder, self._clock, self._monotonic, is_patient=True
            )
        claim, before = self._claims[namespace], self._others.get(namespace)
        try:
            done = claim.is_ours and await claim.write()
            if not done and await claim.is_free() and not await claim.write():
                await claim.is_free()
        except ApiError as error:
            # without the right to it there is no Lease, and whoever installed the chart sees to it that there is no other release
            self._failed(namespace, str(error))
            self._others.setdefault(namespace, "")
            return
        self._problems.pop(namespace, None)
        self._others[namespace] = claim.other
        if claim.other and claim.other != before:
            logger.warning(
                "namespace %s is served by release %s; this operator writes nothing there",
                namespace,
                claim.other,
            )
        elif before and not claim.other:
            logger.info("serves namespace %s, which release %s has left", namespace, before)
            self._wake(namespace)

    async def _release(self, namespace: str) -> None:
        claim = self._claims.pop(namespace)
        self._others.pop(namespace, None)
        self._problems.pop(namespace, None)
        if claim.is_ours:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await claim.release()
            except (ApiError, ApiUnavailableError, TimeoutError) as error:  # as where its namespace has gone
                logger.debug("Lease of namespace %s: %r", namespace, error)

    def _failed(self, namespace: str, problem: str) -> None:
        if self._problems.get(namespace) != problem:
            logger.warning("Lease %s/%s: %s", namespace, contract.SERVED_LEASE, problem)
        self._problems[namespace] = problem
