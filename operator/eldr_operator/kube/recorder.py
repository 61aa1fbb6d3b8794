"""Writes status and Events, and only where something changed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator.errors import ApiError, ApiUnavailableError
from eldr_operator.kube import events
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.repeats import Repeats
from eldr_operator.models import EldrDeployment, EldrFit

Object = dict[str, Any]

logger = logging.getLogger(__name__)


class Recorder:
    """Writes status and Events."""

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self._repeats = Repeats()
        self._rolling: set[str] = set()

    async def deployment(self, cr: EldrDeployment, status: Object, now: datetime) -> None:
        """Write a deployment's status, and an Event for each change of state."""
        happened = events.of_deployment(cr.status, status)
        if any(event.reason in {"Created", "RolloutStarted"} for event in happened):
            self._rolling.add(cr.metadata.uid)
        if cr.metadata.uid in self._rolling and (completed := events.completed(status)):
            self._rolling.discard(cr.metadata.uid)
            happened.append(completed)
        await self._write(contract.KIND_DEPLOYMENT, cr, status, happened, now)

    async def fit(self, fit: EldrFit, status: Object, now: datetime) -> None:
        """Write a fit's status, and an Event for each change of state."""
        await self._write(contract.KIND_FIT, fit, status, events.of_fit(fit.status, status), now)

    async def unreadable_fit(self, live: Object, status: Object) -> None:
        """Write the status of an EldrFit that cannot be read, once."""
        if status == live.get("status"):
            return
        metadata = live["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        logger.warning(
            "%s %s/%s is left out: %s",
            *(contract.KIND_FIT, namespace, name, status["conditions"][0]["message"]),
        )
        try:
            await self._applier.patch_status(contract.KIND_FIT, namespace, name, metadata["uid"], status)
        except ApiError as error:
            logger.warning("status of %s %s was not written: %s", contract.KIND_FIT, name, error)

    async def _write(
        self,
        kind: str,
        about: EldrDeployment | EldrFit,
        status: Object,
        happened: Sequence[events.Event],
        now: datetime,
    ) -> None:
        status = _without_empty(status)
        if status == about.status:
            return
        made_for = about.metadata
        if await self._applier.patch_status(kind, made_for.namespace, made_for.name, made_for.uid, status):
            await self._emit(kind, about, happened, now)

    async def undone(self, cr: EldrDeployment, undone: Sequence[str], now: datetime) -> None:
        """Write an Event for each object to which others had added something that was removed, once an hour."""
        for what in undone:
            await self._hourly(cr, what, events.undone(what), now)

    async def managed_elsewhere(self, cr: EldrDeployment, other: str, now: datetime) -> None:
        """Write an Event that another release serves the namespace of a deployment, once an hour."""
        await self._hourly(cr, other, events.managed_elsewhere(other), now)

    async def _hourly(self, cr: EldrDeployment, cause: str, event: events.Event, now: datetime) -> None:
        """Write the Event of a cause that repeats at most once an hour, with the number of times."""
        if count := self._repeats.count((cr.metadata.uid, cause), now):
            await self._emit(contract.KIND_DEPLOYMENT, cr, [event], now, count)

    async def _emit(
        self,
        kind: str,
        about: EldrDeployment | EldrFit,
        happened: Sequence[events.Event],
        now: datetime,
        count: int = 1,
    ) -> None:
        for event in happened:
            logger.info(
                "%s %s/%s: %s: %s", kind, about.metadata.namespace, about.name, event.reason, event.message
            )
            try:
                await self._applier.create(events.manifest(about, event, now, count))
            except (ApiError, ApiUnavailableError) as error:
                logger.warning("event %s of %s %s was not written: %s", event.reason, kind, about.name, error)


def _without_empty(status: Object) -> Object:
    """Leave out empty objects: server-side apply stores them as null, which the schema of an object refuses."""
    made = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in status.items()}
    return {key: value for key, value in made.items() if value != {}}
