"""What placement by experts can bring on a deployment's hardware, as its routers have learned it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from eldr_operator.models import EldrDeployment
from eldr_operator.router_view import RouterView

Object = dict[str, Any]

_MOST_ERROR = 0.1
_STEP = 5
"""Percent: smaller changes are no news, and would write the status every few seconds."""
_LITTLE = 10


def status(cr: EldrDeployment, routers: Sequence[RouterView]) -> Object:
    """Return ``status.locality``: what it was while no router knows better."""
    before: Mapping[str, Any] = cr.status.get("locality") or {}
    known = [
        router.expert_share
        for router in routers
        if router.expert_share is not None and router.expert_share_error <= _MOST_ERROR
    ]
    if not known:
        return dict(before)
    percent = round(100 * statistics.median(known))
    shown = before.get("expertSharePercent")
    if isinstance(shown, int) and abs(percent - shown) < _STEP:
        percent = shown
    return {"expertSharePercent": percent, "message": _message(percent)}


def _message(percent: int) -> str:
    if percent < _LITTLE:
        return (
            f"reading experts takes {percent} % of a decode step on these accelerators: placement by experts brings next to "
            "nothing here; JSQ does as well"
        )
    return f"reading experts takes {percent} % of a decode step: placement by experts can save a part of that, never more"
