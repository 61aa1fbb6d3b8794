"""What placement by experts can bring on a deployment's hardware, as its routers have learned it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from eldr_operator.locality.router_view import LearnedStepTime, RouterView
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_MOST_ERROR = 0.1
_STEP = 5
"""Percent of a step: smaller changes are no news, and would write the status every few seconds."""
_LITTLE = 10
_CONSTANTS = ("fixedMilliseconds", "microsecondsPerExpert", "microsecondsPerRequest")
_FIELDS = ("expertSharePercent", "message", "stepTime")
_USUAL = 100
"""Experts and requests of the step by which changes of the constants are measured."""


def status(cr: EldrDeployment, routers: Sequence[RouterView]) -> Object:
    """Return ``status.locality``: what it was while no router knows better."""
    before: Mapping[str, Any] = cr.status.get("locality") or {}
    known = [
        (router.expert_share, router.step_time)
        for router in routers
        if router.expert_share is not None and router.expert_share_error <= _MOST_ERROR
    ]
    if not known:
        return {name: before[name] for name in _FIELDS if name in before}
    percent = round(100 * statistics.median(share for share, _ in known))
    shown = before.get("expertSharePercent")
    if isinstance(shown, int) and abs(percent - shown) < _STEP:
        percent = shown
    locality: Object = {"expertSharePercent": percent, "message": _message(percent)}
    # of the router in the middle, not a median of each constant: they fit together
    step_times = [
        step_time for _, step_time in sorted(known, key=lambda one: one[0]) if step_time is not None
    ]
    reported = before.get("stepTime") or {}
    if step_times:
        step_time = step_times[(len(step_times) - 1) // 2]
        reported = reported if _is_like(reported, step_time) else _written(step_time)
    return locality | ({"stepTime": reported} if reported else {})


def _written(step_time: LearnedStepTime) -> Object:
    values = (step_time.fixed * 1e3, step_time.per_expert * 1e6, step_time.per_request * 1e6)
    written: Object = {
        name: f"{Decimal(f'{value:.3g}'):f}" for name, value in zip(_CONSTANTS, values, strict=True)
    }
    return written | ({"windows": step_time.windows} if step_time.windows else {})


def _is_like(reported: Mapping[str, Any], step_time: LearnedStepTime) -> bool:
    """Tell whether a law is no news: each constant changes a usual step by little, and it rests on about as much."""
    try:
        fixed, per_expert, per_request = (float(reported[name]) for name in _CONSTANTS)
        windows = int(reported.get("windows", 0))
    except (KeyError, TypeError, ValueError):
        return False
    before = (fixed * 1e3, _USUAL * per_expert, _USUAL * per_request)  # microseconds of a usual step
    now = (step_time.fixed * 1e6, _USUAL * step_time.per_expert * 1e6, _USUAL * step_time.per_request * 1e6)
    most = max(abs(new - old) for old, new in zip(before, now, strict=True))
    return most <= sum(before) * _STEP / 100 and step_time.windows <= 2 * windows


def _message(percent: int) -> str:
    if percent < _LITTLE:
        return (
            f"reading experts takes {percent} % of a decode step on these accelerators: placement by experts saves next to "
            "nothing here; JSQ is as good"
        )
    return f"reading experts takes {percent} % of a decode step: placement by experts can save a part of that, never more"
