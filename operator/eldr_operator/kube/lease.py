"""Which of several operators acts: the one that holds a Lease.

The others fill their caches and write nothing, so that one of them takes over within seconds. An operator that could not serve leaves a
free Lease to the others for a while.

A renewal is one PUT over the version that the last one has made, so that it survives a slow API server. Only after a conflict is the
Lease read.

The LeaseLock of the ``kubernetes`` package (37.0) is not used: its requests fail in their own validation.

References
----------
.. [1] Kubernetes API, coordination.k8s.io/v1 Lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from eldr_operator.clock import Clock
from eldr_operator.errors import ApiError, ApiUnavailableError, LeaseLostError
from eldr_operator.kube.api import Api, path
from eldr_operator.settings import Settings

Object = dict[str, Any]

logger = logging.getLogger(__name__)

LEASE_SECONDS = 15
"""Without a renewal, after which another operator takes it, whatever duration the Lease itself names: a restored backup can name years."""
RENEW_WITHIN_SECONDS = 10.0
"""From one renewal to the start of the last attempt at the next one: with its own time, that ends before another operator may act."""
_RETRY_SECONDS = 2.0
REQUEST_SECONDS = 5.0
"""For an attempt, always: an API server that is slow answers the fourth as late as the first."""


class Claim:
    """One Lease object, and what its holder was when it was read or written last.

    Parameters
    ----------
    at : tuple of str
        Namespace and name.
    identity : str
        Of the holder to be.
    is_patient : bool
        Whether what another holder gives back is left to it for as long as a Lease lasts.

    Attributes
    ----------
    other : str
        Another holder that was found; empty without one.
    """

    def __init__(
        self,
        api: Api,
        at: tuple[str, str],
        identity: str,
        clock: Clock,
        monotonic: Callable[[], float],
        *,
        is_patient: bool = False,
    ) -> None:
        self._api = api
        self._namespace, self._name = at
        self._identity = identity
        self._clock, self._monotonic = clock, monotonic
        self._is_patient = is_patient
        self._live: Object | None = None
        self._seen: tuple[object, object] = (None, None)
        self._since = 0.0
        self.other = ""

    @property
    def is_ours(self) -> bool:
        """Whether it was ours when it was read or written last: the next write needs no read before it."""
        return ((self._live or {}).get("spec") or {}).get("holderIdentity") == self._identity

    async def is_free(self) -> bool:
        """Read it; tell whether it can be taken or renewed."""
        live = await self._api.get("Lease", self._namespace, self._name)
        spec = (live or {}).get("spec") or {}
        holder, now = spec.get("holderIdentity") or "", self._monotonic()
        # by our own clock, from when a renewal was seen: clocks of nodes differ
        seen = holder, spec.get("renewTime")
        if seen != self._seen:
            self._seen, self._since = seen, now
        own = holder == self._identity or not (holder or (self._is_patient and self.other))
        lasts = min(spec.get("leaseDurationSeconds") or LEASE_SECONDS, LEASE_SECONDS)
        is_free = own or now - self._since >= lasts
        self.other = "" if is_free else holder or self.other
        head = {"metadata": {"name": self._name, "namespace": self._namespace}}
        self._live = (live or head) if is_free else None
        return is_free

    async def write(self, *, release: bool = False) -> bool:
        """Take, renew or release it over the version that is known; False where it has changed since, and is to be read."""
        known = self._live or {}
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = known.get("spec") or {}
        made = {
            "holderIdentity": "" if release else self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": spec.get("acquireTime", now) if self.is_ours else now,
            "renewTime": now,
            "leaseTransitions": (spec.get("leaseTransitions") or 0) + (not self.is_ours),
        }
        method, name = ("PUT", self._name) if "spec" in known else ("POST", "")
        head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": known["metadata"]}
        try:
            self._live = await self._api.request(
                method, path("Lease", self._namespace, name), body=head | {"spec": made}
            )
        except ApiError as error:
            self._live = None
            if error.status in {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}:
                return False
            raise
        return True

    async def release(self) -> None:
        """Give it back where it is still ours."""
        if not (self.is_ours and await self.write(release=True)) and await self.is_free() and self.is_ours:
            await self.write(release=True)


class Lease:
    """Waits for a Lease and renews it.

    Parameters
    ----------
    settings : Settings
        Without a namespace of the Lease there is no other operator, and this one acts at once.
    is_ready : callable
        Tells whether this operator could serve: one that cannot leaves a free Lease to others at first.

    Attributes
    ----------
    held : asyncio.Event
        Set while this process acts.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._name = f"{settings.lease_namespace}/{settings.lease}" if settings.lease_namespace else ""
        self._identity = settings.identity
        at = settings.lease_namespace, settings.lease
        self._claim = Claim(api, at, settings.identity, clock, monotonic)
        self._monotonic = monotonic
        self._is_ready = is_ready
        self._free_since: float | None = None
        self._problem, self._fails_since = "", 0.0
        self.held = asyncio.Event()

    async def run(self) -> None:
        """Hold it until cancelled.

        Raises
        ------
        LeaseLostError
            If another operator acts, or soon will. It is not held any longer then.
        """
        if not self._name:
            self.held.set()
            await asyncio.Event().wait()
        logger.info("waits for Lease %s", self._name)
        renewed = self._monotonic()
        while True:
            began, was_ours = self._monotonic(), self._claim.is_ours
            if self.held.is_set() and began - renewed >= RENEW_WITHIN_SECONDS:
                raise self._lost(f": not renewed for {RENEW_WITHIN_SECONDS:.0f} s")
            if await self._attempt():
                renewed = began
                if not self.held.is_set():
                    logger.info("holds Lease %s as %s", self._name, self._identity)
                    self.held.set()
            elif self.held.is_set() and self._claim.other:  # as after this process stood still for long
                raise self._lost(f" to {self._claim.other}")
            elif was_ours and not self._claim.is_ours:
                continue  # it has changed: read at once
            left = renewed + RENEW_WITHIN_SECONDS - self._monotonic() if self.held.is_set() else math.inf
            await asyncio.sleep(max(0.0, min(_RETRY_SECONDS, left)))

    def not_ready(self) -> str:
        """Return why this operator could not take another one's place; empty if it could, or acts."""
        if not self._problem or self._monotonic() - self._fails_since < LEASE_SECONDS:
            return ""
        return f"Lease {self._name}: {self._problem}"

    async def release(self) -> None:
        """Let another operator act at once, if this one does."""
        if self._name and self.held.is_set():
            self.held.clear()
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self._claim.release()
            except (ApiError, ApiUnavailableError, TimeoutError) as error:
                self._failed(str(error) or type(error).__name__)

    async def _attempt(self) -> bool:
        """Take or renew it; False where another one holds it, or it could not be read or written."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                done = (self._claim.is_ours or await self._may_take()) and await self._claim.write()
        except (ApiError, ApiUnavailableError, TimeoutError) as error:
            self._failed(str(error) or type(error).__name__)
            return False
        self._problem = ""
        return done

    def _failed(self, problem: str) -> None:
        if not self._problem:
            self._fails_since = self._monotonic()
        if problem != self._problem:
            logger.warning("Lease %s: %s", self._name, problem)
        self._problem = problem

    async def _may_take(self) -> bool:
        """Tell whether it is free, and was so for a while where this operator could not serve."""
        if not await self._claim.is_free():
            self._free_since = None
            return False
        if self._free_since is None:
            self._free_since = self._monotonic()
        waits = not self.held.is_set() and not self._is_ready()
        return not waits or self._monotonic() - self._free_since >= LEASE_SECONDS

    def _lost(self, how: str) -> LeaseLostError:
        self.held.clear()
        return LeaseLostError(f"lost Lease {self._name}{how}")
