"""Asks routers what they say of themselves, beside the passes: one that hangs keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from eldr_operator.clock import Clock
from eldr_operator.kube.authorities import Authorities
from eldr_operator.kube.queue import Key
from eldr_operator.locality import routers
from eldr_operator.locality.router_view import RouterPod, RouterView

logger = logging.getLogger(__name__)

AT_ONCE = 64
"""Deployments whose routers are asked at the same time."""
_MISSES = 2
"""Answers in a row that a router may owe and still be as it was: a busy operator or router may be late, and each status is a write."""
_LONGEST_PAUSE_SECONDS = 30.0
_JITTER = 0.2
NOT_YET = "has not been asked yet"
"""Of a router of which nothing is known, so that nothing is wrong with it either."""


class Seen(NamedTuple):
    """What routers said, and when."""

    views: Sequence[RouterView]
    at: datetime


@dataclass(slots=True)
class _Target:
    pods: Sequence[RouterPod] = ()
    token: str = ""
    authority: str = ""
    every: float = 5.0
    seen: Seen | None = None
    misses: dict[RouterPod, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Polls:
    """Polls the routers of each deployment in a task of its own, and wakes the deployment when an answer is another one.

    Parameters
    ----------
    authorities : Authorities
        Say which routers to trust.
    """

    def __init__(
        self, fetch: routers.Fetch, wake: Callable[[Key], None], clock: Clock, authorities: Authorities
    ) -> None:
        self._fetch = fetch
        self._authorities = authorities
        self._wake = wake
        self._clock = clock
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._targets: dict[Key, _Target] = {}

    def latest(self, key: Key, pods: Sequence[RouterPod], token: str, authority: str = "") -> Seen | None:
        """Return what each ready router said last, and go on asking; None before the first answer, which wakes the deployment.

        Parameters
        ----------
        authority : str
            ConfigMap that says which of those that speak TLS to trust; empty for none.
        """
        target = self._targets.setdefault(key, _Target())
        if not pods:
            self._stop(target)
            target.seen = Seen((), self._clock())
        elif (target.pods, target.token, target.authority) != (pods, token, authority):
            target.changed.set()
            if target.task is None:
                target.task = asyncio.create_task(self._run(key, target))
        target.pods, target.token, target.authority = pods, token, authority
        if target.seen is None:
            return None
        known = {view.pod: view for view in target.seen.views}
        views = [known.get(pod) or RouterView(pod, problem=NOT_YET) for pod in pods]
        return Seen(views, target.seen.at)

    def ask_every(self, key: Key, seconds: float) -> None:
        """Set how often the routers of a deployment are asked."""
        target = self._targets[key]
        if seconds < target.every:
            target.changed.set()
        target.every = seconds

    def forget(self, key: Key) -> None:
        """Stop asking the routers of a deployment that is gone."""
        if target := self._targets.pop(key, None):
            self._stop(target)

    def close(self) -> None:
        """Stop asking any router."""
        for key in [*self._targets]:
            self.forget(key)

    @staticmethod
    def _stop(target: _Target) -> None:
        if target.task is not None:
            target.task.cancel()
            target.task = None

    async def _run(self, key: Key, target: _Target) -> None:
        back_off = 0.0
        while True:
            target.changed.clear()
            async with self._slots:
                views = await self._asked(key, target)
                if target.seen is None and any(view.problem for view in views):
                    # an operator that has just started is busy, and may be late itself: nobody is told of that
                    views = await self._asked(key, target)
                views = _remembered(target, views)
            before, target.seen = target.seen, Seen(views, self._clock())
            if before is None or list(before.views) != views:
                self._wake(key)
            is_silent = all(view.problem for view in views)
            back_off = min(2 * max(back_off, target.every), _LONGEST_PAUSE_SECONDS) if is_silent else 0.0
            pause = max(target.every, back_off) * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - so that not all are asked at once
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await target.changed.wait()

    async def _asked(self, key: Key, target: _Target) -> list[RouterView]:
        pods, token, is_any_secure = target.pods, target.token, any(pod.is_secure for pod in target.pods)
        try:
            trust = await self._authorities.of(*key, target.authority) if is_any_secure else None
            return await routers.look(self._fetch, pods, token, trust)
        except Exception as error:  # the polls of a deployment must outlive any one answer
            logger.exception("%s/%s: its routers cannot be asked", *key)
            return [RouterView(pod, problem=f"cannot be asked ({type(error).__name__})") for pod in pods]


def _remembered(target: _Target, views: Sequence[RouterView]) -> list[RouterView]:
    """Return views, with the last one of each router that has missed few answers."""
    before = {view.pod: view for view in (target.seen.views if target.seen else ()) if not view.problem}
    target.misses = {view.pod: target.misses.get(view.pod, 0) + 1 for view in views if view.problem}
    return [
        before.get(view.pod, view)
        if view.problem
        and not (view.refuses_token or view.is_distrusted)
        and target.misses[view.pod] <= _MISSES
        else view
        for view in views
    ]
