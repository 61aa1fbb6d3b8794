"""Which EldrFits to create and delete now. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim

from eldr import contract
from eldr_operator import clock, meta
from eldr_operator.locality.routing import Table
from eldr_operator.models import EldrDeployment, EldrFit
from eldr_operator.validation import schedule

Object = dict[str, Any]

_FIRST_RETRY = timedelta(minutes=5)
_LONGEST_RETRY = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about automatic fits.

    Parameters
    ----------
    create : tuple of dict
        Manifests of EldrFits.
    delete : tuple of str
        Names of EldrFits.
    status : dict
        ``status.refit`` of the deployment.
    wake_at : datetime or None
        When to look again, whatever else happens.
    """

    create: tuple[Object, ...]
    delete: tuple[str, ...]
    status: Object
    wake_at: datetime | None


def plan(cr: EldrDeployment, fits: Sequence[EldrFit], table: Table, samples: int, now: datetime) -> Plan:
    """Plan automatic fits.

    Parameters
    ----------
    cr : EldrDeployment
    fits : sequence of EldrFit
        All of the deployment.
    table : Table
        Which sets routers use.
    samples : int
        Log records that the routers hold together.
    now : datetime
    """
    suspended = cr.spec.refit.suspend == "Enabled"
    status, due = _schedule(cr, now)
    created: list[Object] = []
    unfinished = any(not fit.is_finished for fit in fits)
    if not suspended and not unfinished:
        if due is not None:
            created.append(_manifest(cr, f"{cr.name}-{due.astimezone(UTC):%Y%m%d-%H%M}", "Schedule"))
        elif samples >= cr.spec.refit.min_samples:
            created += _needed(cr, fits, table, now)
    names = {fit.name for fit in fits}
    finished = sorted((fit for fit in fits if fit.is_finished), key=lambda fit: (fit.finished_at, fit.name))
    if finished:
        status["lastFit"] = finished[-1].name
    elif last := cr.status.get("refit", {}).get("lastFit"):
        status["lastFit"] = last
    return Plan(
        create=tuple(fit for fit in created if fit["metadata"]["name"] not in names),
        delete=_surplus(cr, finished, table),
        status=status,
        wake_at=clock.read(status.get("nextScheduleTime")),
    )


def _schedule(cr: EldrDeployment, now: datetime) -> tuple[Object, datetime | None]:
    """Return ``status.refit`` and the minute of the schedule that is due.

    The status remembers the next minute and the schedule it belongs to. So a missed minute is made up for once after
    an outage, whichever operator wrote it, and a changed schedule starts from now instead of from long ago.
    """
    refit, before = cr.spec.refit, cr.status.get("refit", {})
    status: Object = {key: before[key] for key in ("lastScheduleTime",) if key in before}
    if not refit.schedule or refit.suspend == "Enabled" or schedule.problems(refit):
        return status, None
    zone, shown = ZoneInfo(refit.time_zone), f"{refit.schedule} {refit.time_zone}"
    due = None
    planned = clock.read(before.get("nextScheduleTime"))
    if planned is not None and before.get("schedule") == shown and planned <= now:
        # The latest minute up to now; CronSim's reverse leaves out its start, so begin a second later.
        latest = next(CronSim(refit.schedule, (now + timedelta(seconds=1)).astimezone(zone), reverse=True))
        due = max(latest, planned)
        status["lastScheduleTime"] = clock.stamp(due)
    following = next(CronSim(refit.schedule, now.astimezone(zone)))
    return status | {"schedule": shown, "nextScheduleTime": clock.stamp(following)}, due


def _needed(cr: EldrDeployment, fits: Sequence[EldrFit], table: Table, now: datetime) -> Iterable[Object]:
    """Yield the fit that is needed because there is no set at all, or none for this number of decode replicas."""
    accepted = [found for fit in fits if (found := fit.accepted_set)]
    slots = cr.spec.decode.replicas
    if table.active is None and not accepted:
        yield from _attempt(cr, fits, f"{cr.name}-bootstrap", "Bootstrap", now)
    elif table.active is not None and slots not in {table.active.k, *(found.k for found in accepted)}:
        yield from _attempt(cr, fits, f"{cr.name}-scale-k{slots}", "Scale", now)


def _attempt(
    cr: EldrDeployment, fits: Sequence[EldrFit], base: str, trigger: str, now: datetime
) -> Iterable[Object]:
    """Yield the next attempt: base, base-2, base-3, ... with growing pauses."""
    pattern = re.compile(rf"{re.escape(base)}(?:-(\d+))?")
    tried = [(int(match[1] or 1), fit) for fit in fits if (match := pattern.fullmatch(fit.name))]
    if not tried:
        yield _manifest(cr, base, trigger)
        return
    number, last = max(tried, key=lambda pair: pair[0])
    pause = min(_FIRST_RETRY * 2 ** min(number - 1, 10), _LONGEST_RETRY)
    if now - last.finished_at >= pause:
        yield _manifest(cr, f"{base}-{number + 1}", trigger)


def _surplus(cr: EldrDeployment, finished: Sequence[EldrFit], table: Table) -> tuple[str, ...]:
    """Return the finished fits beyond the history limit, the oldest first, but none whose set is in use or pinned."""
    kept: set[str | None] = {cr.spec.centroids.pin, *(found.fit for found in table.sets)}
    older = finished[: -cr.spec.refit.history_limit]
    return tuple(fit.name for fit in older if fit.name not in kept)


def _manifest(cr: EldrDeployment, name: str, trigger: str) -> Object:
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND_FIT,
        "metadata": {
            "name": name,
            "namespace": cr.namespace,
            "labels": meta.labels(cr.name, meta.FIT),
            "ownerReferences": [meta.owner_of(cr)],
        },
        "spec": {"deploymentRef": {"name": cr.name}, "trigger": trigger},
    }
