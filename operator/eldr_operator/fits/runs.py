"""Carries EldrFits forward: starts their Jobs, reads their reports, writes their status."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from eldr import contract
from eldr_operator import clock, parsing
from eldr_operator.drift.counts import Baseline, read_baseline
from eldr_operator.errors import ApiError, InvalidResourceError, RequestFailedError
from eldr_operator.fits import lifecycle
from eldr_operator.fits.job import fit_job
from eldr_operator.fits.planner import Plan
from eldr_operator.kube import refusals
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.owners import owner_uids
from eldr_operator.kube.recorder import Recorder
from eldr_operator.metrics import Metrics
from eldr_operator.models import CentroidSet, EldrDeployment, EldrFit, Report, parse
from eldr_operator.unwritten import Unwritten, Writes

Object = dict[str, Any]

MOST_WAITING = 20
"""EldrFits of a deployment that have not ended, the one that runs included."""
MOST_WRITES = 5
"""EldrFits that a pass refuses, adopts, ends as deleted, or tells that they have no deployment; the next passes go on."""
_SKEW = timedelta(minutes=1)
"""By which clocks may differ that are right."""


class Runs:
    """Carries the fits of a deployment forward."""

    def __init__(self, api: Api, applier: Applier, recorder: Recorder, metrics: Metrics, image: str) -> None:
        self._api = api
        self._applier = applier
        self._recorder = recorder
        self._metrics = metrics
        self._image = image

    async def advance(
        self,
        cr: EldrDeployment,
        all_fits: Sequence[EldrFit],
        jobs: dict[str, Object],
        now: datetime,
        *,
        may_start: bool,
    ) -> bool:
        """Advance the oldest unfinished fits by one step; tell whether one has finished.

        One that waits costs no request. Those beyond the limit are refused, some in each pass, so that no pass takes long.

        Parameters
        ----------
        may_start : bool
            Whether Jobs have the rights that they need.
        """
        deleted = [fit for fit in all_fits if fit.metadata.deletion_timestamp is not None]
        waiting = sorted(
            (fit for fit in all_fits if not fit.is_finished and fit.metadata.deletion_timestamp is None),
            key=lambda fit: (fit.metadata.creation_timestamp, fit.name),
        )
        own = {
            fit.name: job
            for fit in (*waiting, *deleted)
            if (job := _owned(jobs.get(fit.name), fit)) is not None
        }
        waiting.sort(key=lambda fit: fit.name not in own and "jobName" not in fit.status)
        for fit in waiting[MOST_WAITING:][:MOST_WRITES]:
            text = f"{MOST_WAITING} EldrFits of EldrDeployment {cr.name} wait already; create it again when some of them have ended"
            await self._recorder.fit(fit, lifecycle.finished(fit, "TooManyWaiting", text, now), now)
            self._metrics.fits.labels("TooManyWaiting").inc()
        del waiting[MOST_WAITING:]
        busy = next((name for name, job in own.items() if lifecycle.is_running(job)), None)
        finished = False
        # else they would count as running for as long as a finalizer holds them
        for fit in [fit for fit in deleted if not fit.is_finished][:MOST_WRITES]:
            text = f"EldrFit {fit.name} was deleted before it had a result"
            await self._recorder.fit(fit, lifecycle.finished(fit, "Deleted", text, now), now)
            finished = True
        for fit in waiting:
            job = own.get(fit.name)
            report = await self._report(cr, fit.name) if lifecycle.may_have_reported(fit, job) else None
            status, start = lifecycle.advance(
                fit,
                job,
                _owned(report, fit),
                busy=None if busy == fit.name else busy,
                model=cr.spec.model.uri,
                now=now,
                refusal=await refusals.of_job(self._api, job),
            )
            if start and not may_start:
                status, start = (
                    lifecycle.queued(fit, "waits for the rights that Jobs of fits need", now),
                    False,
                )
            if start:
                status = await self._start(cr, fit, status, now)
            await self._recorder.fit(fit, status, now)
            state, reason = fit.model_copy(update={"status": status}).state
            if state == "Unknown":
                busy = busy or fit.name
            else:
                self._metrics.fits.labels(reason).inc()
                finished = True
        return finished

    async def readable(self, bodies: Sequence[Object], now: datetime) -> list[EldrFit]:
        """Return the EldrFits that can be read, and tell those that cannot."""
        fits = []
        for body in bodies:
            try:
                fits.append(await self._not_ahead(parse(EldrFit, body), now))
            except InvalidResourceError as error:
                await self._recorder.unreadable_fit(body, lifecycle.unreadable(body, str(error), now))
        return fits

    async def _not_ahead(self, fit: EldrFit, now: datetime) -> EldrFit:
        """Write when a fit was created in place of a result that lies ahead: else no later one would be newer until then."""
        if not fit.is_finished or fit.finished_at <= now + _SKEW:
            return fit
        status = fit.status | {"finishedAt": clock.stamp(fit.metadata.creation_timestamp)}
        await self._recorder.fit(fit, status, now)
        return fit.model_copy(update={"status": status})

    async def _start(self, cr: EldrDeployment, fit: EldrFit, status: Object, now: datetime) -> Object:
        try:
            await self._applier.create(fit_job(cr, fit, self._image))
        except ApiError as error:
            if error.status != 409:
                return lifecycle.finished(fit, "JobRefused", f"Job {fit.name}: {error.message or error}", now)
            if _owned(await self._api.get("Job", cr.namespace, fit.name, metadata_only=True), fit) is None:
                text = f"another Job {fit.name} exists; delete it, or create the EldrFit under another name"
                return lifecycle.finished(fit, "NameConflict", text, now)
        except RequestFailedError as error:
            return lifecycle.unavailable(fit, f"Job {fit.name}: {error.message}", now)
        return status

    async def baseline(self, cr: EldrDeployment, pointer: CentroidSet) -> Baseline | None:
        """Return what a fit stored beside its set; None for nothing: the fit has told why, or is gone with its report."""
        config_map = await self._report(cr, pointer.fit)
        try:
            report = parse(Report, parsing.load((config_map or {})["data"][contract.REPORT_KEY]))
            same = report.pointer is not None and report.pointer.digest == pointer.digest
            return read_baseline(report.baseline, pointer.k) if same else None
        except (InvalidResourceError, ValueError, KeyError, TypeError):
            return None

    async def _report(self, cr: EldrDeployment, fit: str) -> Object | None:
        return await self._api.get("ConfigMap", cr.namespace, contract.report_name(fit))

    async def carry_out(
        self, cr: EldrDeployment, plan: Plan, all_fits: Sequence[EldrFit], writes: Writes
    ) -> tuple[bool, list[Unwritten]]:
        """Create and delete automatic EldrFits as planned; return whether there is a new one, and what could not be written."""
        kind, created = contract.KIND_FIT, list[str]()
        left = []
        if plan.create is not None:
            name = plan.create["metadata"]["name"]
            left.append(await writes.tried(kind, name, self._create(plan.create, created)))
        for fit in all_fits:
            if fit.name in plan.delete:
                metadata = {"namespace": cr.namespace, "name": fit.name, "uid": fit.metadata.uid}
                deleted = self._applier.delete(kind, {"metadata": metadata})
                left.append(await writes.tried(kind, fit.name, deleted))
        return bool(created), [*filter(None, left)]

    async def _create(self, manifest: Object, created: list[str]) -> None:
        """Create an EldrFit; one of that name will be seen with the next change of the cache."""
        try:
            await self._applier.create(manifest)
        except ApiError as error:
            if error.status != 409:
                raise
        else:
            created.append(manifest["metadata"]["name"])


def _owned(live: Object | None, fit: EldrFit) -> Object | None:
    """Return an object if it belongs to this very fit, not to an earlier one of the same name."""
    return live if live is not None and fit.metadata.uid in owner_uids(live) else None
