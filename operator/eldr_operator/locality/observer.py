"""Looks at a deployment for signs of drift: windows of traffic, what placement saves, what fits have said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from eldr_operator import border
from eldr_operator.drift import windows
from eldr_operator.drift.observation import DriftFit, Observation, SetReport
from eldr_operator.fits.candidates import about_to_serve, pinned
from eldr_operator.kube.queue import Key
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.router_view import RouterView
from eldr_operator.models import EldrDeployment, EldrFit


class Observer:
    """Gathers windows; one that is being filled is forgotten with the process, and only that."""

    def __init__(self) -> None:
        self._gathering: dict[Key, windows.Gathering] = {}
        self._window: dict[Key, windows.Window] = {}

    def look(
        self,
        cr: EldrDeployment,
        fits: Sequence[EldrFit],
        before: Memory,
        views: Sequence[RouterView],
        now: datetime,
    ) -> Observation:
        """Look once more.

        Parameters
        ----------
        fits : sequence of EldrFit
            All of the deployment.
        before : Memory
            As the routing ConfigMap has it.
        """
        active, key, spec = before.table.active, (cr.namespace, cr.name), cr.spec.refit.drift
        if active is not None:
            known = (view.traffic for view in views if view.traffic is not None)
            # the first of a window says how many clusters there are: it must not be one that is mistaken
            traffic = [
                one for one in known if one.digest != active.digest or len(one.counts.clusters) == active.k
            ]
            self._gathering[key], full = windows.advance(
                self._gathering.get(key),
                active.digest,
                traffic,
                now,
                requests=spec.window_requests,
                seconds=spec.window_seconds,
            )
            if full is not None:
                self._window[key] = full
        window = self._window.get(key)
        if window is not None and window.latest.until > now:
            # the clock was set back: it would be judged again and again
            del self._window[key]
            window = None
        previous = before.table.previous
        if previous is not None and previous.k != cr.spec.decode.replicas:
            previous = None  # it cannot serve
        named = pinned(cr, fits, before.table)
        return Observation(
            digest=None if active is None else active.digest,
            activated=before.table.activated_at,
            previous=None if previous is None else previous.digest,
            pinned=bool(cr.spec.centroids.pin),
            chosen=active is not None and named is not None and named.digest == active.digest,
            policy=cr.spec.router.policy,
            baseline=None if active is None else before.baselines.get(active.digest),
            window=window,
            # routers look at the same engines, so what they measure must not be averaged
            saving=max(
                filter(None, (view.saving for view in views)), key=lambda one: one.steps, default=None
            ),
            report=None if active is None else _report(fits, active.digest, before.table.activated_at),
            fits=tuple(filter(None, (_caused(cr, fit) for fit in fits))),
            busy=_busy(cr, fits, before),
            samples=sum(view.samples for view in views),
            min_samples=cr.spec.refit.min_samples,
            suspended=cr.spec.refit.suspend == "Enabled",
            sample_rate=cr.spec.signatures.sample_percent / 100,
        )

    def forget(self, key: Key) -> None:
        """Drop what is known of a deployment that is gone."""
        self._gathering.pop(key, None)
        self._window.pop(key, None)


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
    found = re.fullmatch(rf"{re.escape(cr.name)}-drift-([1-9]\d*)", fit.name)
    if found is None or fit.spec.trigger != "Drift":
        return None
    finished = fit.finished_at if fit.is_finished else None
    # a person may give it a number that cannot be remembered: it counts as a fit, and the next one's number goes on from ours
    return DriftFit(border.count(int(found[1])) or 0, fit.metadata.creation_timestamp, finished)


def _busy(cr: EldrDeployment, fits: Sequence[EldrFit], before: Memory) -> str | None:
    """Return the fit that runs, or whose set is accepted and not active yet."""
    table = before.table
    running = [fit.name for fit in fits if not fit.is_finished]
    if running:
        return min(running)
    following = about_to_serve(cr, fits, table, before.drift.blocked)
    if following is not None:
        return following.name
    return None if table.staged is None else table.staged.fit
