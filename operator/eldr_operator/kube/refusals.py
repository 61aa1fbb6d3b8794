"""Why the pods of a StatefulSet or Job cannot be created: other than of a Deployment, only Events tell it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from eldr_operator import clock
from eldr_operator.conditions import NOT_REFUSED, Refusal, is_observed
from eldr_operator.errors import OperatorError
from eldr_operator.kube.api import Api

Object = Mapping[str, Any]

_REASON = "FailedCreate"
_NEW = timedelta(seconds=10)
"""So young a StatefulSet has few pods because its controller is still making them."""


def seconds_until_asked(live: Object | None, now: datetime) -> float | None:
    """Return after how many seconds to ask why a StatefulSet has fewer pods than it wants; None where it is not new, or has all."""
    if live is None or not _lacks_pods(live):
        return None
    made = clock.read(live["metadata"].get("creationTimestamp"))
    left = timedelta(0) if made is None else made + _NEW - now
    # a clock that is behind says nothing of its age
    return left.total_seconds() if timedelta(0) < left <= _NEW else None


async def of_stateful_set(api: Api, live: Object | None, now: datetime) -> Refusal:
    """Return why a StatefulSet has fewer pods than it wants; empty where it has all, nothing says why, or it is too early to say."""
    if live is None or not _lacks_pods(live) or seconds_until_asked(live, now) is not None:
        return NOT_REFUSED
    if not is_observed(live):
        return NOT_REFUSED  # its controller comes first, and its status wakes a pass
    return await _told(api, live)


async def of_job(api: Api, live: Object | None) -> str:
    """Return why a Job has never had a pod; empty where it has one, or nothing says why."""
    status = (live or {}).get("status") or {}
    if live is None or any(status.get(key) for key in ("active", "succeeded", "failed", "conditions")):
        return ""
    return (await _told(api, live)).message


def _lacks_pods(live: Object) -> bool:
    return bool((live.get("status") or {}).get("replicas", 0) < live["spec"]["replicas"])


async def _told(api: Api, live: Object) -> Refusal:
    metadata = live["metadata"]
    fields = f"involvedObject.uid={metadata['uid']},reason={_REASON}"
    try:
        found, _ = await api.list("Event", metadata["namespace"], fields=fields)
    except OperatorError:
        # rights of an older chart, or Events that cannot be read: what is not ready is told all the same
        return NOT_REFUSED
    since = min(filter(None, (clock.read(event.get("firstTimestamp")) for event in found)), default=None)
    # Each pod has a text of its own; always the same one, or the status would be written again and again.
    return Refusal(min((str(event.get("message", "")) for event in found), default=""), since)
