"""Checks that a CRD's CEL rules cannot make. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.validation import (
    arguments,
    depth,
    patches,
    routers,
    schedule,
    speculation,
    templates,
    variables,
    weights,
)


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return every problem of a resource that the API server could not see."""
    return [
        *depth.problems(cr),
        *schedule.problems(cr.spec.refit),
        *schedule.window_problems(cr.spec.refit.drift.maintenance_window),
        *arguments.problems(cr),
        *speculation.problems(cr),
        *routers.problems(cr),
        *variables.problems(cr),
        *weights.problems(cr),
        *templates.problems(cr),
        *patches.problems(cr.spec.prefill.pod_template, "spec.prefill.podTemplate"),
        *patches.problems(cr.spec.decode.pod_template, "spec.decode.podTemplate"),
        *patches.problems(cr.spec.router.pod_template, templates.ROUTERS),
        *patches.problems(cr.spec.refit.pod_template, templates.FITS),
    ]


def blocked_roles(cr: EldrDeployment, invalid: Iterable[Problem]) -> set[str]:
    """Return the roles whose pods must stay as they are, because a field that they are made from cannot be used."""
    router = contract.ROLE_PREFILL if cr.spec.router.placement == "Sidecar" else contract.ROLE_ROUTER
    fields = {
        contract.ROLE_PREFILL: ["spec.prefill.", "spec.engine."],
        contract.ROLE_DECODE: ["spec.decode.", "spec.engine."],
        contract.ROLE_ROUTER: [],
    }
    fields[router].append("spec.router.")
    unusable = [problem.field for problem in invalid]
    return {
        role
        for role, prefixes in fields.items()
        if any(field.startswith(tuple(prefixes)) for field in unusable)
    }
