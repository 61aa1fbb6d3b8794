"""Fills the cache, and wakes the controllers that stand over it: with each change, and everything now and then."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import zlib
from collections.abc import Callable, Sequence

from eldr import contract
from eldr_operator.controller import LONGEST_PASS_SECONDS, Controller
from eldr_operator.kube.api import Object
from eldr_operator.kube.cache import Cache, deployment_of
from eldr_operator.kube.queue import Key
from eldr_operator.kube.served import Served
from eldr_operator.kube.streams import Streams
from eldr_operator.metrics import Metrics

logger = logging.getLogger(__name__)

_STUCK_SECONDS = 60.0
"""Beyond what the resync and a pass are given: only a fault of this process explains it."""
_IDLE_SECONDS = 60.0
"""Without the end of any pass although one is due."""
_LIST_EVERY = 5
"""Resyncs: watches tell what changes, a list what they missed."""
_LIST_AGAIN_SECONDS = (2.0, 5.0, 15.0)
"""While something cannot be read; the resync's interval after these."""

_ASKED = {contract.KIND_DEPLOYMENT, contract.KIND_FIT}
"""Kinds whose generations say what people want. All other changes come in bursts, many of them the operator's own."""


class Manager:
    """Runs controllers over one cache.

    Parameters
    ----------
    acts : asyncio.Event
        Until it is set the cache is filled, and nothing is reconciled.
    streams : Streams
        Listed here, into the cache.
    served : Served
        Renewed while this operator acts.
    resync_seconds : float
        Between two passes over everything.
    """

    def __init__(
        self,
        controllers: Sequence[Controller],
        *,
        acts: asyncio.Event,
        cache: Cache,
        streams: Streams,
        served: Served,
        metrics: Metrics,
        resync_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controllers = controllers
        self._acts = acts
        self._cache = cache
        self._streams = streams
        self._served = served
        self._listed = asyncio.Event()
        metrics.watch_blind(lambda: streams.blind)
        metrics.watch_elsewhere(lambda: served.elsewhere)
        self._resync_seconds = resync_seconds
        self._monotonic = monotonic
        self._resynced = monotonic()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resync())
            await self._listed.wait()
            await self._acts.wait()
            group.create_task(self._served.run())
            for controller in self._controllers:
                group.create_task(controller.run())

    def stuck(self) -> str:
        """Return what has stopped that only a new process starts again; empty while all goes on.

        An API server that is away, or a resource that cannot be read, is none of it: a restart would change nothing.
        """
        late = self._monotonic() - self._resynced - self._resync_seconds
        if late > _STUCK_SECONDS:
            return f"no resync for {late:.0f} s beyond its interval"
        longest = max(controller.queue.longest_busy() for controller in self._controllers)
        if longest > LONGEST_PASS_SECONDS + _STUCK_SECONDS:
            return f"a pass does not end after {longest:.0f} s"
        return ""

    def not_ready(self) -> str:
        """Return why resources that should be served are not; empty if all are, idle ones included."""
        problems = [f"{stream}: {why}" for stream, why in sorted(self._streams.blind.items(), key=str)]
        for controller in self._controllers:
            idle = controller.idle_seconds()
            if self._acts.is_set() and idle > _IDLE_SECONDS:
                problems.append(
                    f"no pass over {controller.name} has ended for {idle:.0f} s, though one is due"
                )
        return "\n".join(problems)

    def changed(self, kind: str, live: Object, *, is_gone: bool) -> None:
        """Take a change that a watch has told, and wake the deployment that it concerns."""
        metadata = live["metadata"]
        # what this operator writes is in the cache before a watch tells it
        is_own = not is_gone and self._cache.holds(kind, live)
        is_asked = kind in _ASKED and (is_gone or self._generation(kind, metadata) != _generation(metadata))
        if is_gone:
            self._cache.remove(kind, live)
        else:
            self._cache.put(kind, live)
        if (name := deployment_of(kind, live)) is None:
            return
        for controller in self._controllers:
            if kind in controller.kinds and not (is_own and kind in controller.own):
                wake = controller.queue.wake if is_asked else controller.queue.wake_rested
                wake((metadata["namespace"], name))

    def _generation(self, kind: str, metadata: Object) -> object:
        known = self._cache.get(kind, metadata["namespace"], metadata["name"])
        return known and _generation(known["metadata"])

    async def _resync(self) -> None:
        again = iter(_LIST_AGAIN_SECONDS)
        for turn in itertools.count():
            started = self._monotonic()
            # what could not be read has kept passes from being made, and what only a list has found had none
            known = set[Key]() if self._streams.blind else self._keys()
            await self._streams.list(everything=turn % _LIST_EVERY == 0, ended=self._went_on)
            self._listed.set()
            for key in self._keys():
                for controller in self._controllers:
                    controller.queue.wake(key, self._resync_seconds * _share(key) if key in known else 0.0)
            self._went_on()
            pause = self._resync_seconds
            if self._streams.blind:
                pause = min(pause, next(again, pause))
            else:
                again = iter(_LIST_AGAIN_SECONDS)
            await asyncio.sleep(max(0.0, started + pause - self._monotonic()))

    def _went_on(self) -> None:
        """Take note that the resync is at work: lists of many namespaces take long where the API server is slow."""
        self._resynced = self._monotonic()

    def _keys(self) -> set[Key]:
        return {
            (live["metadata"]["namespace"], name)
            for kind in (contract.KIND_DEPLOYMENT, contract.KIND_FIT)
            for live in self._cache.every(kind)
            if (name := deployment_of(kind, live)) is not None
        }


def _share(key: Key) -> float:
    """Return where in the time between two resyncs a deployment has its pass, always the same: 0 to 1."""
    return zlib.crc32("/".join(key).encode()) / 2**32


def _generation(metadata: Object) -> object:
    return metadata["uid"], metadata.get("generation")
