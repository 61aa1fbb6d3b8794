"""What a look at a deployment sees of drift: windows of traffic, what placement saves, what fits have said. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from eldr_operator import parsing
from eldr_operator.drift.observation import DriftFit, Observation, SetReport
from eldr_operator.drift.windows import Window
from eldr_operator.fits.candidates import about_to_serve, pinned
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.router_view import RouterView
from eldr_operator.models import EldrDeployment, EldrFit


def look(
    cr: EldrDeployment,
    fits: Sequence[EldrFit],
    before: Memory,
    views: Sequence[RouterView],
    window: Window | None,
) -> Observation:
    """Look once more, at all fits of a deployment, its memory and routers, and the last full window."""
    table = before.table
    active, previous, named = table.active, table.previous, pinned(cr, fits, table)
    can_serve = previous is not None and previous.k == cr.spec.decode.replicas
    return Observation(
        digest=None if active is None else active.digest,
        activated=table.activated_at,
        previous=previous.digest if previous is not None and can_serve else None,
        pinned=bool(cr.spec.centroids.pin),
        chosen=active is not None and named is not None and named.digest == active.digest,
        policy=cr.spec.router.policy,
        baseline=None if active is None else before.baselines.get(active.digest),
        window=window,
        # routers look at the same engines, so what they measure must not be averaged
        saving=max(filter(None, (view.saving for view in views)), key=lambda one: one.steps, default=None),
        report=None if active is None else _report(fits, active.digest, table.activated_at),
        fits=tuple(filter(None, (_caused(cr, fit) for fit in fits))),
        busy=_busy(cr, fits, before),
        samples=sum(view.samples for view in views),
        min_samples=cr.spec.refit.min_samples,
        suspended=cr.spec.refit.suspend == "Enabled",
        sample_rate=cr.spec.signatures.sample_percent / 100,
    )


def _report(fits: Sequence[EldrFit], digest: str, activated: datetime | None) -> SetReport | None:
    """Return what the last fit said that held recent records against this very set."""
    said = [
        SetReport(fit.name, harms, fit.finished_at)
        for fit in fits
        if fit.is_finished
        and fit.status.get("activeSetDigest") == digest
        and isinstance(harms := fit.status.get("activeSetRegresses"), bool)
        and activated is not None
        and fit.finished_at > activated
    ]
    return max(said, key=lambda one: (one.finished, one.fit), default=None)


def _caused(cr: EldrDeployment, fit: EldrFit) -> DriftFit | None:
    match = re.fullmatch(rf"{re.escape(cr.name)}-drift-([1-9]\d*)", fit.name)
    if match is None or fit.spec.trigger != "Drift":
        return None
    finished = fit.finished_at if fit.is_finished else None
    # a person may give it a number that cannot be remembered: it counts as a fit, and the next one's number goes on from ours
    return DriftFit(parsing.count(int(match[1])) or 0, fit.metadata.creation_timestamp, finished)


def _busy(cr: EldrDeployment, fits: Sequence[EldrFit], before: Memory) -> str | None:
    """Return the fit that runs, or whose set is accepted and not active yet."""
    if running := [fit.name for fit in fits if not fit.is_finished]:
        return min(running)
    if following := about_to_serve(cr, fits, before.table, before.drift.blocked):
        return following.name
    return None if before.table.staged is None else before.table.staged.fit
