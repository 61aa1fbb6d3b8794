"""Fields that take anything, and what is nested in them deeper than any pod is. Pure.

Of what is nested very deep, the cache keeps only the outer levels: it must not be taken for the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment

_MOST_LEVELS = 100
_REMEDY = f"remove what is nested deeper than {_MOST_LEVELS} levels"


def problems(cr: EldrDeployment) -> Iterator[Problem]:
    """Yield the podTemplates and variables that are nested too deep."""
    spec = cr.spec
    for name, part in (("prefill", spec.prefill), ("decode", spec.decode), ("router", spec.router)):
        yield from _of(part.pod_template, "InvalidPodTemplate", f"spec.{name}.podTemplate")
        yield from _of(part.env, "InvalidVariable", f"spec.{name}.env")
    yield from _of(spec.refit.pod_template, "InvalidPodTemplate", "spec.refit.podTemplate")
    yield from _of(spec.engine.env, "InvalidVariable", "spec.engine.env")


def _of(value: Any, reason: str, field: str) -> Iterator[Problem]:
    if _is_deep(value):
        yield Problem(reason, field, value, _REMEDY)


def _is_deep(value: Any) -> bool:
    inside = [value]
    for _ in range(_MOST_LEVELS):
        outer = (each.values() if isinstance(each, dict) else each for each in inside)
        inside = [each for one in outer for each in one if isinstance(each, dict | list)]
        if not inside:
            return False
    return True
