"""Which EldrFits to create and delete now. Pure."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from eldr import contract
from eldr_operator import clock, cron, meta
from eldr_operator.conditions import ROLLED_BACK
from eldr_operator.fits import attempts
from eldr_operator.fits.candidates import about_to_serve, is_for_model
from eldr_operator.locality.memory import Refit
from eldr_operator.locality.outcome import Look
from eldr_operator.locality.routing import Table
from eldr_operator.models import EldrDeployment, EldrFit
from eldr_operator.validation import schedule

Object = dict[str, Any]

STABLE = timedelta(minutes=30)
"""Decode replicas stay the same for so long before a set is fitted for their number: an autoscaler would ask for one at each step."""
MOST_DELAY = timedelta(minutes=10)
"""Of a fit by schedule behind its minute."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about automatic fits.

    Parameters
    ----------
    create : dict or None
        Manifest of an EldrFit.
    delete : tuple of str
        Names of others.
    refit : Refit
        Remembered until the next pass.
    wake_at : datetime or None
        When to look again, whatever else happens.
    """

    create: Object | None
    delete: tuple[str, ...]
    refit: Refit
    wake_at: datetime | None


@dataclass(frozen=True, slots=True)
class Situation:
    """What automatic fits depend on.

    Parameters
    ----------
    fits : sequence of EldrFit
        All of the deployment.
    taken : collection of str
        Names of all EldrFits of the namespace, also of other deployments.
    """

    fits: Sequence[EldrFit]
    taken: Collection[str]
    look: Look

    @property
    def table(self) -> Table:
        """Which sets routers use."""
        return self.look.before.table

    @property
    def tried_since(self) -> datetime | None:
        """Since when attempts count, see :func:`eldr_operator.fits.attempts.situation_since`."""
        return attempts.situation_since(self.fits, self.table, self.look.drift.blocked)

    @property
    def regime_since(self) -> datetime | None:
        """Since when traffic is as it is: the change that was detected, or that the active set was fitted after.

        After a roll-back it is the roll-back: a set of older records has just not kept its promise, or their traffic is over.
        """
        table, known = self.table, self.look.drift
        is_detected, left = known.drift.phase == "Detected", table.previous
        changed = known.drift.changed if is_detected else None
        if table.reason == ROLLED_BACK or (left is not None and left.digest in known.blocked):
            return max(filter(None, (table.activated_at, changed)), default=None)
        active = table.active and table.active.fit
        fitted_since = next((fit.spec.since for fit in self.fits if fit.name == active), None)
        return changed if is_detected else fitted_since


def plan(cr: EldrDeployment, at: Situation, now: datetime) -> Plan:
    """Plan automatic fits."""
    before, seen, order = at.look.before.refit, at.look.seen, at.look.verdict.fit
    refit, due = _schedule(cr, before, now)
    created = None
    if cr.spec.refit.suspend == "Disabled" and all(fit.is_finished for fit in at.fits):
        if due is not None:
            created = _scheduled(cr, at, due)
        elif order is not None:
            name = _following(f"{cr.name}-drift", order.number, at.taken)
            created = _manifest(cr, name, "Drift", order.since or at.regime_since, order.before)
        elif seen.samples >= cr.spec.refit.min_samples:
            created = _needed(cr, at, now)
    finished = sorted(
        (fit for fit in at.fits if fit.is_finished), key=lambda fit: (fit.finished_at, fit.name)
    )
    following, since = refit.next_schedule_time, at.look.before.replicas_since
    wakes = [] if following is None else [following + _delay(cr, following)]
    if since is not None and since + STABLE > now:
        wakes.append(since + STABLE)
    return Plan(
        create=created,
        delete=_surplus(cr, at, finished),
        refit=refit.but(last_fit=finished[-1].name if finished else before.last_fit),
        wake_at=min(wakes, default=None),
    )


def _schedule(cr: EldrDeployment, before: Refit, now: datetime) -> tuple[Refit, datetime | None]:
    """Return :attr:`Plan.refit` and the minute of the schedule that is due.

    It remembers the next minute and the schedule it belongs to. So a missed minute is made up for once after
    an outage, whichever operator wrote it, and a changed schedule starts from now instead of from long ago.
    """
    refit = cr.spec.refit
    made = Refit(last_schedule_time=before.last_schedule_time)
    if not refit.schedule or refit.suspend == "Enabled" or schedule.problems(refit):
        return made, None
    shown = f"{refit.schedule} {refit.time_zone}"
    planned = before.next_schedule_time if before.schedule == shown else None
    made = made.but(schedule=shown)
    if planned is None or planned > now:
        following = cron.following(refit.schedule, refit.time_zone, now)
        return made.but(next_schedule_time=following), None
    delay = _delay(cr, planned)
    if planned + delay > now:
        return made.but(next_schedule_time=planned), None
    due = max(cron.latest(refit.schedule, refit.time_zone, now - delay), planned)
    following = cron.following(refit.schedule, refit.time_zone, due)
    return made.but(last_schedule_time=due, next_schedule_time=following), due


def _delay(cr: EldrDeployment, planned: datetime) -> timedelta:
    """Return how long after a minute of the schedule its fit begins: deployments with the same schedule do not begin together.

    Each has a delay of its own, up to ten minutes and a tenth of what lies between two of its fits.
    """
    refit = cr.spec.refit
    most = min(MOST_DELAY, (cron.following(refit.schedule, refit.time_zone, planned) - planned) / 10)
    share = int.from_bytes(hashlib.sha256(cr.metadata.uid.encode()).digest()[:4], "big") / 2**32
    return timedelta(seconds=int(share * most.total_seconds()))


def _scheduled(cr: EldrDeployment, at: Situation, due: datetime) -> Object | None:
    """Return the fit of a minute, unless it was made already: an operator may have ended just after that."""
    name = f"{cr.name}-{due.astimezone(UTC):%Y%m%d-%H%M}"
    if any(attempts.number(fit.name, name) for fit in at.fits):
        return None
    return _manifest(cr, _free(name, 1, at.taken), "Schedule", at.regime_since)


def _needed(cr: EldrDeployment, at: Situation, now: datetime) -> Object | None:
    """Return the fit that is needed: there is no set, none for this number of decode replicas, or one that cannot be loaded."""
    active, slots, blocked = at.table.active, cr.spec.decode.replicas, at.look.drift.blocked
    if about_to_serve(cr, at.fits, at.table, blocked) is not None:
        return None
    if active is None:
        since = at.table.activated_at
        if at.table.rolled_back_to_none and since is not None and now - since < attempts.FIRST_PAUSE:
            return None  # a fit at once would find no records but those that the last set was made of
        sets = [fit.accepted_set for fit in at.fits if is_for_model(cr, fit)]
        if not any(pointer and pointer.k != slots and pointer.digest not in blocked for pointer in sets):
            return _attempt(cr, at, f"{cr.name}-bootstrap", "Bootstrap", now)
    if active is None or active.k != slots:
        since = at.look.before.replicas_since
        if since is None or now - since < STABLE:
            return None
        return _attempt(cr, at, f"{cr.name}-scale-k{slots}", "Scale", now)
    is_refused = any(view.refusal(active) for view in at.look.routers)
    return _attempt(cr, at, f"{cr.name}-repair", "Repair", now) if is_refused else None


def _attempt(cr: EldrDeployment, at: Situation, base: str, trigger: str, now: datetime) -> Object | None:
    following = attempts.following(base, at.fits, at.tried_since, now)
    if following is None:
        return None
    made = _manifest(cr, _free(base, following.number, at.taken), trigger, at.regime_since)
    made["metadata"]["annotations"] = {contract.ANNOTATION_ATTEMPT: str(following.tries)}
    return made


def _free(base: str, number: int, taken: Collection[str]) -> str:
    """Return the first name from ``number`` on that nobody has; another deployment may be called so as to have it."""
    return base if number == 1 and base not in taken else _following(base, max(2, number), taken)


def _following(base: str, number: int, taken: Collection[str]) -> str:
    return next(name for n in itertools.count(number) if (name := f"{base}-{n}") not in taken)


def _surplus(cr: EldrDeployment, at: Situation, finished: Sequence[EldrFit]) -> tuple[str, ...]:
    """Return the automatic fits beyond the history limit, the oldest first, but none that the future depends on."""
    kept: set[str | None] = {cr.spec.centroids.pin, *(pointer.fit for pointer in at.table.sets)}
    kept |= attempts.latest(cr.name, finished, at.tried_since)
    older = [fit for fit in finished if fit.is_automatic][: -cr.spec.refit.history_limit]
    return tuple(fit.name for fit in older if fit.name not in kept)


def _manifest(
    cr: EldrDeployment, name: str, trigger: str, since: datetime | None, before: datetime | None = None
) -> Object:
    spec: Object = {"deploymentRef": {"name": cr.name}, "trigger": trigger}
    times = {"since": since, "before": before}
    spec |= {key: clock.stamp(time) for key, time in times.items() if time is not None}
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND_FIT,
        "metadata": {
            "name": name,
            "namespace": cr.namespace,
            "labels": meta.labels(cr.name, meta.FIT),
            "ownerReferences": [meta.owner_of(cr)],
        },
        "spec": spec,
    }
