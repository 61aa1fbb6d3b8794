"""Sets that are not activated by themselves any more, as it stands on the fits that made them. Pure.

The operator's memory holds them too; but it may be lost or damaged, and a set that was taken out of use must not come back
by that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from eldr_operator.conditions import BARRED, ROLLED_BACK, Condition, merged
from eldr_operator.models import EldrFit

Object = dict[str, Any]

_STAYS = "it is not activated again by itself; spec.centroids.pin of the EldrDeployment can"


def recalled(fits: Iterable[EldrFit], barred: tuple[str, ...]) -> tuple[str, ...]:
    """Return the digests that are barred, those included that only fits tell of.

    Parameters
    ----------
    fits : iterable of EldrFit
        All of the deployment.
    barred : tuple of str
        As the memory has them, the newest last.
    """
    told = [
        (fit.finished_at, found.digest)
        for fit in fits
        if fit.barred and (found := fit.accepted_set) is not None
    ]
    return (*(digest for _, digest in sorted(told) if digest not in barred), *barred)


def marks(
    fits: Iterable[EldrFit], barred: Collection[str], refused: Mapping[str, str], now: datetime
) -> Iterator[tuple[EldrFit, Object]]:
    """Yield each fit that does not tell yet that its set is barred, and its new status.

    Parameters
    ----------
    fits : iterable of EldrFit
    barred : collection of str
        Digests.
    refused : mapping of str to str
        Digests of those that no router can load, and why; the others were rolled back.
    now : datetime
    """
    for fit in fits:
        found = fit.accepted_set
        if found is None or found.digest not in barred or fit.barred:
            continue
        why = refused.get(found.digest)
        if why is None:
            condition = Condition(BARRED, "True", ROLLED_BACK, f"the set was taken out of use: {_STAYS}")
        else:
            condition = Condition(BARRED, "True", "Refused", f"{why}: {_STAYS}")
        others = fit.status.get("conditions", ())
        made = merged(others, [condition], fit.metadata.generation, now)
        yield fit, fit.status | {"conditions": [*others, *made]}
