"""What a pass saw of the routers, and what it did about centroids and fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eldr_operator.conditions import Condition
from eldr_operator.fits.planner import Plan
from eldr_operator.locality.activation import Decision
from eldr_operator.locality.router_view import RouterView
from eldr_operator.locality.routing import Table


@dataclass(frozen=True, slots=True)
class Look:
    """What routers say, and what follows for the routing table.

    Parameters
    ----------
    routers : sequence of RouterView
        Ready ones.
    before : Table
        As the routing ConfigMap has it.
    decision : Decision
        What it is to become.
    """

    routers: Sequence[RouterView]
    before: Table
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was decided and carried out.

    Parameters
    ----------
    routers : sequence of RouterView
    decision : Decision
        The activation's last step, as it was written.
    signatures : Condition
    plan : Plan
        Of automatic fits.
    finished : bool
        Whether a fit has finished.
    refused : str
        Why the routing table could not be written; empty if it was.
    """

    routers: Sequence[RouterView]
    decision: Decision
    signatures: Condition
    plan: Plan
    finished: bool
    refused: str
