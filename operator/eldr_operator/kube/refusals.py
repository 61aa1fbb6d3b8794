"""Why pods of a StatefulSet or Job cannot be created, and why a pod cannot mount its volumes: only Events say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

_RETRIED = timedelta(seconds=150)
"""A kubelet tries a mount again within this time, and reports it again."""


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
    return await _refusal(api, live)


async def of_mounts(api: Api, pods: Iterable[Object], now: datetime) -> str:
    """Return why a pod cannot mount its volumes, as where a Secret is missing; empty where all can, or nothing says why."""
    for pod in pods:
        made = clock.read(pod["metadata"].get("creationTimestamp"))
        if not _waits(pod) or made is None or now - made < _NEW:
            continue
        fields = f"involvedObject.uid={pod['metadata']['uid']},reason=FailedMount"
        events = await _events(api, pod["metadata"]["namespace"], fields)
        recent = [each for each in events if _is_recent(each, now)]
        if text := min((str(event.get("message", "")) for event in recent), default=""):
            return f"pod {pod['metadata']['name']}: {text}"
        return ""  # the others wait for the same, or for nothing
    return ""


def _waits(pod: Object) -> bool:
    status = pod.get("status") or {}
    waiting = [
        ((each.get("state") or {}).get("waiting") or {}).get("reason")
        for key in ("initContainerStatuses", "containerStatuses")
        for each in status.get(key) or ()
    ]
    is_starting = status.get("phase", "Pending") == "Pending" and "deletionTimestamp" not in pod["metadata"]
    return is_starting and bool({"ContainerCreating", "PodInitializing"} & {*waiting})


def _is_recent(event: Object, now: datetime) -> bool:
    at = clock.read(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"))
    return at is not None and now - at < _RETRIED


async def of_job(api: Api, live: Object | None) -> str:
    """Return why a Job has never had a pod; empty where it has one, or nothing says why."""
    status = (live or {}).get("status") or {}
    if live is None or any(status.get(key) for key in ("active", "succeeded", "failed", "conditions")):
        return ""
    return (await _refusal(api, live)).message


def _lacks_pods(live: Object) -> bool:
    return bool((live.get("status") or {}).get("replicas", 0) < live["spec"]["replicas"])


async def _refusal(api: Api, live: Object) -> Refusal:
    metadata = live["metadata"]
    events = await _events(
        api, metadata["namespace"], f"involvedObject.uid={metadata['uid']},reason={_REASON}"
    )
    since = min(filter(None, (clock.read(event.get("firstTimestamp")) for event in events)), default=None)
    # Each pod has a text of its own; always the same one, or the status would be written again and again.
    return Refusal(min((str(event.get("message", "")) for event in events), default=""), since)


async def _events(api: Api, namespace: str, fields: str) -> Sequence[Object]:
    try:
        events, _ = await api.list("Event", namespace, fields=fields)
    except OperatorError:
        return ()  # what is not ready is reported all the same
    return events
