"""What `eldr compare` changes on an EldrDeployment, and how that is undone, by whoever comes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from eldr import contract
from eldr.status.fields import inside

Object = dict[str, Any]

ANNOTATION: Final = f"{contract.GROUP}/compare"
"""On an EldrDeployment under comparison: what it had before, what was set, and until when it is held."""
LIFETIME: Final = timedelta(seconds=120)
"""After which a comparison that no longer says that it runs counts as ended."""
_PATHS: Final = {
    "policy": ("router", "policy"),
    "suspend": ("refit", "suspend"),
    "mode": ("refit", "drift", "mode"),
}
_DEFAULTS: Final = {"policy": contract.POLICY_DEFAULT, "suspend": "Disabled", "mode": "Enabled"}
_HELD: Final = {"suspend": "Enabled", "mode": "Observe"}
"""Fits, roll-backs and protection would change placement while it is measured."""
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Hold:
    """A comparison's mark on a deployment.

    Attributes
    ----------
    was, now : mapping
        Values of the fields before, and as they were set last, by the names in messages.
    """

    id: str
    until: datetime
    was: Mapping[str, str]
    now: Mapping[str, str]

    def is_alive(self, at: datetime) -> bool:
        """Tell whether whoever made it may still run."""
        return at < self.until

    def but(self, at: datetime, policy: str | None = None) -> Hold:
        """Return it renewed, with another policy set."""
        now = self.now if policy is None else {**self.now, "policy": policy}
        return replace(self, until=at + LIFETIME, now=now)

    def dump(self) -> str:
        """Return it as the annotation holds it."""
        fields = {"id": self.id, "until": self.until.strftime(_TIME), "was": self.was, "now": self.now}
        return json.dumps(fields, sort_keys=True)


def new(deployment: Object, name: str, at: datetime, policy: str) -> Hold:
    """Return the mark of a comparison that begins with a policy."""
    return Hold(name, at + LIFETIME, values(deployment), {"policy": policy, **_HELD})


def of(deployment: Object) -> Hold | None:
    """Return the mark on a deployment; one that nobody can read is as good as none."""
    annotation = inside(deployment, "metadata", "annotations").get(ANNOTATION)
    try:
        fields = json.loads(str(annotation))
        was, now = ({key: str(fields[part][key]) for key in _PATHS} for part in ("was", "now"))
        until = datetime.strptime(fields["until"], _TIME).replace(tzinfo=UTC)
        return Hold(str(fields["id"]), until, was, now)
    except (TypeError, ValueError, KeyError):
        return None


def values(deployment: Object) -> dict[str, str]:
    """Return the fields that a comparison sets."""
    fields = {}
    for name, (*path, last) in _PATHS.items():
        value = inside(deployment, "spec", *path).get(last)
        fields[name] = str(value) if value else _DEFAULTS[name]
    return fields


def patch(deployment: Object, hold: Hold) -> Object:
    """Return the merge patch that sets what a mark says, and the mark with it: nobody ever finds one without the other."""
    return _patch(deployment, hold.now, hold.dump())


def undo(deployment: Object, hold: Hold) -> Object:
    """Return the merge patch that removes a mark; what somebody else has set meanwhile stays."""
    live = values(deployment)
    back = {name: hold.was[name] for name, value in hold.now.items() if live[name] == value}
    return _patch(deployment, back, None)


def changed(deployment: Object, hold: Hold) -> str:
    """Return what somebody else has changed; empty if nothing."""
    mark = of(deployment)
    if mark is None:
        return f"somebody removed the annotation {ANNOTATION}"
    if mark.id != hold.id:
        return "another eldr compare holds the deployment"
    live = values(deployment)
    differs = [name for name, value in hold.now.items() if live[name] != value]
    return "; ".join(f"somebody set {'.'.join(_PATHS[name])} to {live[name]}" for name in differs)


def _patch(deployment: Object, fields: Mapping[str, str], mark: str | None) -> Object:
    spec: Object = {}
    for name, value in fields.items():
        *path, last = _PATHS[name]
        inner = spec
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    # with the version that was read: whoever writes in between makes it a conflict, and it is decided anew
    version = inside(deployment, "metadata").get("resourceVersion")
    metadata = {"resourceVersion": version, "annotations": {ANNOTATION: mark}}
    return {"metadata": metadata, "spec": spec} if spec else {"metadata": metadata}
