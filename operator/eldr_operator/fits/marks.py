"""Sets that are not activated by themselves any more, and sets that harm, as it stands on the fits that made them. Pure.

The operator's memory holds them too; but it may be lost or damaged, and a set that was taken out of use or of service must
not come back by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from eldr_operator.conditions import BLOCKED, REGRESSES, ROLLED_BACK, Condition, merged
from eldr_operator.drift.state import State
from eldr_operator.models import EldrFit

Object = dict[str, Any]

_HARMS = Condition(
    REGRESSES,
    "True",
    "SavesLess",
    "the set saves less than placement by load. With policy ELDR it is out of service while it is active, until its traffic returns"
    " or a fit reports that it does not regress",
)
_HARMS_NO_LONGER = Condition(
    REGRESSES, "False", "InService", "the set regressed, and as far as is known no longer does"
)
_STAYS = "it is not activated again by itself; spec.centroids.pin of the EldrDeployment can"


def recalled(fits: Sequence[EldrFit], known: State) -> State:
    """Return what is remembered of a deployment, with the sets that are blocked or harm, as only its fits tell."""
    return known.but(
        blocked=_recalled((fit for fit in fits if fit.blocked), known.blocked),
        harmful=_recalled((fit for fit in fits if fit.harms), known.harmful),
    )


def _recalled(fits: Iterable[EldrFit], known: tuple[str, ...]) -> tuple[str, ...]:
    sets = [(fit.finished_at, pointer.digest) for fit in fits if (pointer := fit.accepted_set) is not None]
    return (*(digest for _, digest in sorted(sets) if digest not in known), *known)


def marks(
    fits: Iterable[EldrFit], known: State, refused: Mapping[str, str], now: datetime
) -> Iterator[tuple[EldrFit, Object]]:
    """Yield each fit that does not tell yet what is known of its set, and its new status.

    Parameters
    ----------
    refused : mapping of str to str
        Digests of those that no router can load, and why; the others were rolled back.
    """
    for fit in fits:
        pointer = fit.accepted_set
        if pointer is None:
            continue
        news = []
        if pointer.digest in known.blocked and not fit.blocked:
            news.append(_block(refused.get(pointer.digest)))
        if (pointer.digest in known.harmful) != fit.harms:
            news.append(_HARMS_NO_LONGER if fit.harms else _HARMS)
        if news:
            before = fit.status.get("conditions", ())
            types = {condition.type for condition in news}
            others = [condition for condition in before if condition.get("type") not in types]
            made = merged(before, news, fit.metadata.generation, now)
            yield fit, fit.status | {"conditions": [*others, *made]}


def _block(why: str | None) -> Condition:
    if why is None:
        return Condition(BLOCKED, "True", ROLLED_BACK, f"the set was rolled back: {_STAYS}")
    return Condition(BLOCKED, "True", "Refused", f"{why}: {_STAYS}")
