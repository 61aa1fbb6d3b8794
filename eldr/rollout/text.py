"""The state of rollouts as lines for a screen. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eldr import contract
from eldr.rollout.revisions import Revision, in_use

Object = Mapping[str, Any]

_ROLES = (contract.ROLE_PREFILL, contract.ROLE_DECODE, contract.ROLE_ROUTER)
_EXPECTED = {"Progressing": "True", "Degraded": "False", "UpdateAvailable": "False", "ConfigValid": "True"}
_REPORTED = {"RolloutInProgress", "RevisionHeld"}
"""Reasons that are told though the condition is as expected."""


def lines(deployment: Object, revisions: Sequence[Revision]) -> Iterator[str]:
    """Yield what each role runs, what there was before, and what is not as it should be."""
    status = deployment.get("status") or {}
    rows = [("ROLE", "READY", "REVISION", "WORKED", "FAILED", "IMAGE")]
    for role in _ROLES:
        current, state = in_use(deployment, role), status.get(role) or {}
        ready = f"{state.get('ready', 0)}/{state.get('desired', 0)}"
        own = [each for each in revisions if each.role == role]
        for each in sorted(own, key=lambda each: (each.name != current, -each.number)):
            first = each.name == current
            marks = each.completed or "-", each.failed or "-"
            rows.append((role if first else "", ready if first else "", each.name, *marks, each.image))
        if current not in {each.name for each in own}:
            rows.append((role, ready, current or "-", "-", "-", "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for condition in status.get("conditions") or ():
        type_, stands = condition.get("type"), condition.get("status")
        if type_ in _EXPECTED and (stands != _EXPECTED[type_] or condition.get("reason") in _REPORTED):
            yield f"{type_}={stands}, {condition.get('reason')}: {condition.get('message')}"
