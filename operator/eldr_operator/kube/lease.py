"""Which of several operators acts: the one that holds a Lease.

The others fill their caches and write nothing, so that one of them takes over within seconds. So an upgrade starts the new operator
beside the old one, which goes on until it ends. One that is newer than the leader says in the Lease that it waits, and an older
standby leaves it the next turn. One that could not serve leaves a free Lease to the others for a while, whatever its version.

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
from typing import Any

from packaging.version import InvalidVersion, Version

from eldr import contract
from eldr_operator import clock as clocks
from eldr_operator.clock import Clock
from eldr_operator.errors import ApiError, ApiUnavailableError, LeaseLostError
from eldr_operator.kube.api import Api, path
from eldr_operator.settings import Settings

Object = dict[str, Any]

logger = logging.getLogger(__name__)

LEASE_SECONDS = 15
"""Without a renewal, after which another operator takes it."""
RENEW_WITHIN_SECONDS = 10.0
"""Less than that, so that its holder has stopped by then."""
VERSION = f"{contract.GROUP}/version"
"""Annotation: the version of its holder."""
WAITS = f"{contract.GROUP}/waits"
"""Annotation: the version of a newer operator that waits for it, and when it said so last."""
_WAITS_EVERY_SECONDS = 5.0
_RETRY_SECONDS = 2.0
_REQUEST_SECONDS = 5.0


class Lease:
    """Waits for a Lease and renews it.

    Parameters
    ----------
    settings : Settings
        Without a namespace of the Lease there is no other operator, and this one acts at once.
    is_ready : callable
        Tells whether this operator could serve: one that cannot keeps no other one from the Lease.

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
        self._api = api
        self._namespace, self._name = settings.lease_namespace, settings.lease
        self._identity, self._version = settings.identity, settings.version
        self._clock, self._monotonic = clock, monotonic
        self._is_ready = is_ready
        self._seen: tuple[object, object] = (None, None)
        self._since = 0.0
        self._waits, self._waits_since = "", 0.0
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
        if not self._namespace:
            self.held.set()
            await asyncio.Event().wait()
        logger.info("waits for Lease %s/%s", self._namespace, self._name)
        renewed, seconds = self._monotonic(), _REQUEST_SECONDS
        while True:
            began = self._monotonic()
            if await self._write(seconds):
                renewed = began
                if not self.held.is_set():
                    logger.info("holds Lease %s/%s as %s", self._namespace, self._name, self._identity)
                    self.held.set()
            left = renewed + RENEW_WITHIN_SECONDS - self._monotonic() if self.held.is_set() else math.inf
            if left <= 0:
                raise self._lost(f": not renewed for {RENEW_WITHIN_SECONDS:.0f} s")
            await asyncio.sleep(min(_RETRY_SECONDS, left))
            seconds = min(_REQUEST_SECONDS, max(0.1, left - _RETRY_SECONDS))

    def not_ready(self) -> str:
        """Return why this operator could not take another one's place; empty if it could, or acts."""
        if not self._problem or self._monotonic() - self._fails_since < LEASE_SECONDS:
            return ""
        return f"Lease {self._namespace}/{self._name}: {self._problem}"

    async def release(self) -> None:
        """Let another operator act at once, if this one does."""
        if self._namespace and self.held.is_set():
            self.held.clear()
            await self._write(_REQUEST_SECONDS, release=True)

    async def _write(self, seconds: float, *, release: bool = False) -> bool:
        """Take, renew or release it; False where another one holds it, or it could not be read or written."""
        try:
            async with asyncio.timeout(seconds):
                live = await self._api.get("Lease", self._namespace, self._name)
                self._look_who_waits(live)
                free = self._is_free(live or {}, release=release)
                self._look_since_when_free(free=free)
                free = free and (release or not self._stands_back(live))
                if free:
                    await self._put(live, release=release)
                elif not release and self._is_to_say_so(live):
                    await self._say_so(live or {})
        except (ApiError, ApiUnavailableError, TimeoutError) as error:
            self._failed(str(error) or type(error).__name__)
            return False
        self._problem = ""
        return free

    def _failed(self, problem: str) -> None:
        if not self._problem:
            self._fails_since = self._monotonic()
        if problem != self._problem:
            logger.warning("Lease %s/%s: %s", self._namespace, self._name, problem)
        self._problem = problem

    def _is_free(self, live: Object, *, release: bool) -> bool:
        spec = live.get("spec") or {}
        holder, now = spec.get("holderIdentity"), self._monotonic()
        if not holder or holder == self._identity:
            return bool(holder) or not release
        if self.held.is_set():  # as after this process stood still for long
            raise self._lost(f" to {holder}")
        # by our own clock, from when a renewal was seen: clocks of nodes differ
        seen = holder, spec.get("renewTime")
        if seen != self._seen:
            self._seen, self._since = seen, now
        return not release and now - self._since >= spec.get("leaseDurationSeconds", LEASE_SECONDS)

    def _stands_back(self, live: Object | None) -> bool:
        """Tell whether it is left to another operator: to a newer one that waits, or to any where this one could not serve.

        Both for a while only, by our own clock from when that was seen.
        """
        is_newer = _is_newer(_annotation(live, WAITS).partition(" ")[0], self._version)
        return not self.held.is_set() and (
            (is_newer and self._quiet_seconds() < LEASE_SECONDS)
            or (not self._is_ready() and self._free_seconds() < LEASE_SECONDS)
        )

    def _is_to_say_so(self, live: Object | None) -> bool:
        """Tell whether other standbys are to be told that this operator, newer than the leader, waits."""
        waits = _annotation(live, WAITS).partition(" ")[0]
        is_newest = _is_newer(self._version, _annotation(live, VERSION)) and (
            _is_newer(self._version, waits) or self._quiet_seconds() >= _WAITS_EVERY_SECONDS
        )
        return is_newest and self._is_ready()

    def _look_who_waits(self, live: Object | None) -> None:
        """Take note of when a newer operator has said that it waits: looked at only once the Lease is free, that would be too late."""
        if (waits := _annotation(live, WAITS)) != self._waits:
            self._waits, self._waits_since = waits, self._monotonic()

    def _look_since_when_free(self, *, free: bool) -> None:
        if not free:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = self._monotonic()

    def _free_seconds(self) -> float:
        """Return for how long anybody could have taken it."""
        return 0.0 if self._free_since is None else self._monotonic() - self._free_since

    def _quiet_seconds(self) -> float:
        """Return since when no newer operator has said that it waits."""
        return self._monotonic() - self._waits_since

    def _lost(self, how: str) -> LeaseLostError:
        self.held.clear()
        return LeaseLostError(f"lost Lease {self._namespace}/{self._name}{how}")

    async def _put(self, live: Object | None, *, release: bool) -> None:
        """Take, renew or release it."""
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = (live or {}).get("spec") or {}
        is_ours = spec.get("holderIdentity") == self._identity
        made = {
            "holderIdentity": "" if release else self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": spec.get("acquireTime", now) if is_ours else now,
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (not is_ours),
        }
        waits = _annotation(live, WAITS) if is_ours else ""
        await self._written(live, made, {VERSION: self._version, WAITS: waits})

    async def _say_so(self, live: Object) -> None:
        waits = f"{self._version} {clocks.stamp(self._clock())}"
        await self._written(live, live.get("spec") or {}, {WAITS: waits})

    async def _written(self, live: Object | None, spec: Object, annotations: dict[str, str]) -> None:
        """Write it over the version that was read, so that of two operators one takes it."""
        head: Object = {"name": self._name, "namespace": self._namespace}
        metadata: Object = live["metadata"] if live is not None else head
        metadata = metadata | {"annotations": (metadata.get("annotations") or {}) | annotations}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        method, name = ("POST", "") if live is None else ("PUT", self._name)
        await self._api.request(method, path("Lease", self._namespace, name), body=body)


def _annotation(live: Object | None, name: str) -> str:
    return str((((live or {}).get("metadata") or {}).get("annotations") or {}).get(name, ""))


def _is_newer(version: str, than: str) -> bool:
    """Tell whether one version is newer than another; what is none is older than any."""
    found = []
    for each in (version, than):
        try:
            found.append(Version(each))
        except InvalidVersion:
            found.append(Version("0"))
    return found[0] > found[1]
