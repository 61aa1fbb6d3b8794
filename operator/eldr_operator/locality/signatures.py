"""Whether prefill engines tell which experts they used, as far as routers saw it lately. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL, ROLE_DECODE, ROLE_PREFILL
from eldr_operator.conditions import SIGNATURES_REPORTED, Condition, condition_of
from eldr_operator.locality.router_view import RouterView
from eldr_operator.models import EldrDeployment
from eldr_operator.validation.arguments import uncounted

WINDOW = timedelta(seconds=30)
"""Least time that a judgement covers."""
LEAST_ANSWERS = 10
"""Fewer prefill answers say nothing; the window grows until there are as many."""
TOLERATED = 0.05
"""Share of answers without usable counts that is not worth a complaint: a restarting engine, an odd prompt."""

_UNSEEN = Condition(
    SIGNATURES_REPORTED,
    "Unknown",
    "NoTraffic",
    f"routers have not seen {LEAST_ANSWERS} prefill answers yet, or the operator has just begun to look",
)
_READ_MORE = "see docs/guides/vllm.md"
_NOT_COUNTED = "NotCounted"
_UNSUPPORTED = "Unsupported"
_SILENT = ". Decode engines have failed to count. Routers learn nothing from their steps, and their requests are never used for a fit: "
_BY_ARGUMENT = (
    ". Decode engines serve without counting experts, so that routers learn nothing from their steps: "
)
_UNTESTED = ". Decode engines run a version of vLLM that the plugin was never tested with: "


@dataclass(frozen=True, slots=True)
class Window:
    """What the routers' counters were when it began: router id to prefill answers by quality."""

    since: datetime
    start: Mapping[str, Mapping[str, int]]


def advance(
    window: Window | None, views: Sequence[RouterView], now: datetime
) -> tuple[Window, Mapping[str, int] | None]:
    """Look at the routers once more.

    Routers count from their start and change their id with it, so only what one id counted more since the window
    began is recent.

    Returns
    -------
    window : Window
        To look through the next time.
    answers : mapping or None
        Recent prefill answers by quality, once there are enough; the window then begins anew.
    """
    current = {view.router: view.signatures for view in views if view.router}
    if window is None or now < window.since:  # the clock may be set back
        return Window(now, current), None
    recent: Counter[str] = Counter()
    for router, counted in current.items():
        before = window.start.get(router, counted)
        # of what is told now and was not told before nobody knows when it was counted
        more = {quality: number - before.get(quality, number) for quality, number in counted.items()}
        recent.update({quality: max(0, number) for quality, number in more.items()})
    if now - window.since >= WINDOW and recent.total() >= LEAST_ANSWERS:
        return Window(now, current), dict(recent)
    return Window(window.since, {**current, **window.start}), None


def judge(cr: EldrDeployment, answers: Mapping[str, int] | None) -> Condition:
    """Judge recent prefill answers; without any, what was said before stays said, unless the arguments say more."""
    if reasons := uncounted(cr, ROLE_PREFILL):
        text = f"prefill engines serve without counting experts; requests {_placed(cr)}: {'; '.join(reasons)}"
        return _says("False", _UNSUPPORTED, text)
    if answers is None:
        return _said_before(cr.status) or _UNSEEN
    total = sum(answers.values())
    missing, unreadable, inexact = (
        answers.get(quality, 0) / total for quality in ("no_signature", "wire_error", "inexact")
    )
    if unreadable > TOLERATED:
        text = (
            f"{unreadable:.0%} of recent prefill answers carried expert counts that routers cannot read; they "
            f"{_placed(cr)}. Use the same version for operator, router and engine plugin"
        )
        return _says("False", "Unreadable", text)
    if missing > TOLERATED:
        text = (
            f"{missing:.0%} of recent prefill answers carried no expert counts; they {_placed(cr)}, and are "
            f"never used for a fit. {_remedy(cr)}"
        )
        return _says("False", "Missing", text)
    if inexact > TOLERATED:
        text = (
            f"{inexact:.0%} of recent prefill answers carried incomplete expert counts. They are used for placement, but "
            f"never for a fit. Remove what hides tokens from the count; {_READ_MORE}"
        )
        return _says("False", "Inexact", text)
    return _says("True", "Reported", "prefill engines report the experts of their requests")


def warned(judged: Condition, views: Sequence[RouterView], cr: EldrDeployment) -> Condition:
    """Add to a judgement, which may be an older one, what decode engines say of themselves.

    Versions that nobody has tested warn only. Engines that have failed to count make a good judgement a bad one.
    """
    message = judged.message.partition(_UNTESTED)[0].partition(_SILENT)[0].partition(_BY_ARGUMENT)[0]
    status, reason = judged.status, judged.reason
    if reason == _NOT_COUNTED:
        status, reason = "True", "Reported"
    reasons, silent = uncounted(cr, ROLE_DECODE), sorted({name for view in views for name in view.silent})
    if reasons:
        message += f"{_BY_ARGUMENT}{'; '.join(reasons)}"
    elif silent:
        message += f"{_SILENT}{', '.join(silent)}; look for ELDR in their logs (container engine), and restart their pods"
    if status == "True" and (reasons or silent):
        status, reason = "False", _NOT_COUNTED
    if versions := sorted({version for view in views for version in view.untested}):
        message += f"{_UNTESTED}{', '.join(versions)}; compare signatures before you rely on them, or take an image of a tested one"
    return judged._replace(status=status, reason=reason, message=message)


def _says(status: str, reason: str, message: str) -> Condition:
    return Condition(SIGNATURES_REPORTED, status, reason, message)


def _placed(cr: EldrDeployment) -> str:
    if cr.spec.router.policy == POLICY_MARGINAL:
        return "count as requests of the pool's mean"
    return "are placed by load" if cr.spec.router.policy == POLICY_ELDR else "are placed as all others"


def _remedy(cr: EldrDeployment) -> str:
    if cr.spec.engine.type == "vLLM":
        return (
            "Look for eldr in the log of a prefill engine (container engine): its plugin was not loaded, or the "
            f"model's kernels hide the routing; {_READ_MORE}"
        )
    return "Look at the log of a prefill engine (container engine)"


def _said_before(status: Mapping[str, Any]) -> Condition | None:
    said = condition_of({"status": status}, SIGNATURES_REPORTED)
    if not said or said["reason"] == _UNSUPPORTED:
        return None
    return _says(said["status"], said["reason"], said["message"])
