"""What a pass saw of the routers, and what it did about centroids and fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from eldr_operator.conditions import Condition
from eldr_operator.drift.decide import Verdict
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.state import State
from eldr_operator.locality.activation import Decision
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.router_view import RouterView
from eldr_operator.unwritten import Unwritten


@dataclass(frozen=True, slots=True)
class Look:
    """What routers say, and what follows for the routing table.

    Parameters
    ----------
    routers : sequence of RouterView
        Ready ones.
    before : Memory
        As the routing ConfigMap has it.
    decision : Decision
        What the table is to become.
    seen, drift, verdict : Observation, State, Verdict
        Of drift: what was seen, what is known of it now, and what follows.
    unauthorized : sequence of RouterView
        Routers that the API server refuses, also those that are no longer ready.
    can_serve : bool
        Whether a ready router can send requests to a decode engine, or could a moment ago. One that does not answer the operator may.
    """

    routers: Sequence[RouterView]
    before: Memory
    decision: Decision
    seen: Observation
    drift: State
    verdict: Verdict
    unauthorized: Sequence[RouterView] = ()
    can_serve: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was carried out.

    Parameters
    ----------
    memory : Memory
        As it was written.
    wake_at : datetime or None
        When the next fit is due.
    is_unfinished : bool
        Whether a fit was created or has finished, and more follows from it at once.
    unwritten : sequence of Unwritten
        Of the routing table and the automatic fits, what could not be written.
    """

    look: Look
    memory: Memory
    signatures: Condition
    wake_at: datetime | None
    is_unfinished: bool
    unwritten: Sequence[Unwritten] = ()
