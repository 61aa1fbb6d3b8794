"""Which sets may be activated without a person's word, and which one a person has named. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from eldr_operator.locality.routing import Table
from eldr_operator.models import CentroidSet, EldrDeployment, EldrFit


def candidates(
    cr: EldrDeployment, fits: Sequence[EldrFit], table: Table, blocked: Collection[str] = ()
) -> list[EldrFit]:
    """Return the fits whose set may be active now, the best last.

    A set was judged on the traffic of its time. So one that is older than the active set, or than one that was rolled back,
    never comes back by itself, not even when its number of workers does: a new fit is made then, on recent records. Where
    sets were taken out of use and none serves, a new fit is made as well.
    """
    active = table.active
    made = table.activated_at
    if active is not None:
        own = next((fit.finished_at for fit in fits if fit.name == active.fit), made)
        judged = (
            fit.finished_at for fit in fits if (has := fit.accepted_set) is not None and has.digest in blocked
        )
        made = max((at for at in (own, *judged) if at is not None), default=None)
    suitable = [
        fit
        for fit in fits
        if (has := fit.accepted_set) is not None
        and has.k == cr.spec.decode.replicas
        and is_for_model(cr, fit)
        and has.digest not in blocked
        and (made is None or fit.finished_at > made or (active is not None and fit.name == active.fit))
    ]
    return sorted(suitable, key=lambda fit: (fit.finished_at, fit.name))


def about_to_serve(
    cr: EldrDeployment, fits: Sequence[EldrFit], table: Table, blocked: Collection[str]
) -> EldrFit | None:
    """Return the fit whose set comes next; None where that serves already, also where another fit made the very same one."""
    suitable = candidates(cr, fits, table, blocked)
    best = suitable[-1].accepted_set if suitable else None
    if best is None or (table.active is not None and best.digest == table.active.digest):
        return None
    return suitable[-1]


def pinned(cr: EldrDeployment, fits: Sequence[EldrFit], table: Table) -> CentroidSet | None:
    """Return the set that ``spec.centroids.pin`` names; None where it names none that was accepted."""
    by_name = {pointer.fit: pointer for fit in fits if (pointer := fit.accepted_set)}
    # An EldrFit may have been deleted while its set is still in use: the table knows it.
    by_name |= {pointer.fit: pointer for pointer in table.sets}
    return by_name.get(cr.spec.centroids.pin or "")


def is_for_model(cr: EldrDeployment, fit: EldrFit) -> bool:
    """Tell whether a fit was made for the model that is deployed now."""
    return bool(fit.status.get("model", cr.spec.model.uri) == cr.spec.model.uri)
