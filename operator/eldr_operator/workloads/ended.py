"""Why containers of a pod have ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr import contract

Object = Mapping[str, Any]

_WORDS = 200


def containers(pod: Object) -> list[Object]:
    """Return the states of all containers of a pod, those of initialisation first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def last(container: Object) -> Object:
    """Return how a container ended last; empty if it has not."""
    for state in ("state", "lastState"):
        if terminated := (container.get(state) or {}).get("terminated"):
            return dict(terminated)
    return {}


def refusal_of(container: Object) -> str:
    """Return why the plug-in ended an engine; empty if it did not."""
    words = str(last(container).get("message") or "")
    return words.removeprefix(contract.REFUSAL).strip() if words.startswith(contract.REFUSAL) else ""


def description(container: Object) -> str:
    """Return why a container ended last: reason, exit code and last words; empty if it has not."""
    how = last(container)
    if not how:
        return ""
    reason, code = str(how.get("reason") or "Error"), how.get("exitCode")
    words = " ".join(str(how.get("message") or "").split())[:_WORDS]
    return f"{reason}, exit code {code}" + (f": {words}" if words else "")
