"""Remembers pods that Kubernetes failed: evicted, rejected by a kubelet, or lost with their node.

A StatefulSet deletes such a pod at once and makes another one, so a single look often sees neither. Failures of the last ten minutes count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from eldr import contract
from eldr_operator import clock
from eldr_operator.conditions import condition_of
from eldr_operator.kube.queue import Key

Object = Mapping[str, Any]

_WINDOW = timedelta(minutes=10)
_MOST = 10
"""Beyond, the count is no longer exact: it would rewrite the status with each pod."""


@dataclass(slots=True)
class _Streak:
    """Failures of a role without a pause of ten minutes."""

    first: str
    last: datetime
    uids: set[str] = field(default_factory=set)


class Failures:
    """Counts failed pods by deployment and role."""

    def __init__(self) -> None:
        self._known: dict[Key, dict[str, _Streak]] = {}

    def of(self, key: Key, pods: Iterable[Object], now: datetime) -> dict[str, str]:
        """Return which pods of each role failed lately, in words, and remember them."""
        streaks = self._known.setdefault(key, {})
        for pod in sorted(pods, key=lambda pod: (_at(pod, now), str(pod["metadata"]["name"]))):
            role = (pod["metadata"].get("labels") or {}).get(contract.LABEL_ROLE)
            at = _at(pod, now)
            if (pod.get("status") or {}).get("phase") == "Failed" and role and now - at < _WINDOW:
                streak = streaks.setdefault(role, _Streak(_description(pod), at))
                streak.last = max(streak.last, at)
                if len(streak.uids) <= _MOST:
                    streak.uids.add(pod["metadata"]["uid"])
        for role in [role for role, streak in streaks.items() if now - streak.last >= _WINDOW]:
            del streaks[role]
        return {role: _text(streak) for role, streak in streaks.items()}

    def forget(self, key: Key) -> None:
        """Drop what is known of a deployment that is gone."""
        self._known.pop(key, None)


def _at(pod: Object, now: datetime) -> datetime:
    """Return when a pod failed, as far as its conditions say."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    times = [clock.read(each.get("lastTransitionTime")) for each in conditions]
    times.append(clock.read(pod["metadata"].get("creationTimestamp")))
    return min(max(filter(None, times), default=now), now)


def _description(pod: Object) -> str:
    status, disrupted = pod.get("status") or {}, condition_of(pod, "DisruptionTarget")
    reason = status.get("reason") or disrupted.get("reason") or "Failed"
    message = status.get("message") or disrupted.get("message") or "Kubernetes gives no message"
    return f"pod {pod['metadata']['name']}: {reason}: {message}"


def _text(streak: _Streak) -> str:
    count = len(streak.uids)
    pods = "1 pod" if count == 1 else f"more than {_MOST} pods" if count > _MOST else f"{count} pods"
    return f"{pods} failed within 10 minutes, first {streak.first}"
