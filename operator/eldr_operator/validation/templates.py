"""What a ``podTemplate`` would take from an engine of vLLM: its command, its arguments, all its variables. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment, RoleSpec

Object = dict[str, Any]


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused fields of both roles; only vLLM's are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    roles = {contract.ROLE_PREFILL: cr.spec.prefill, contract.ROLE_DECODE: cr.spec.decode}
    return [problem for role, spec in roles.items() for problem in _of_role(role, spec)]


def engine_patches(role: RoleSpec, field: str) -> Iterator[tuple[str, Object]]:
    """Yield the patches of the engine's container, and where they stand.

    Parameters
    ----------
    role : RoleSpec
    field : str
        Path of the role in the custom resource.
    """
    pod = role.pod_template.get("spec")
    containers = pod.get("containers") if isinstance(pod, dict) else None
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, dict) and container.get("name") == contract.CONTAINER_ENGINE:
            yield f"{field}.podTemplate.spec.containers[{index}]", container


def _of_role(role: str, spec: RoleSpec) -> Iterator[Problem]:
    # Lists of arguments have no key to be merged by: whatever stands there replaces what the operator made.
    replaced = {
        "command": "remove it: it would replace the operator's; a start of your own belongs into spec.engine.image, as its vllm",
        "args": f"remove it: it would replace all arguments of the operator; write yours into spec.{role}.args or spec.engine.args",
    }
    for where, container in engine_patches(spec, f"spec.{role}"):
        for key, remedy in replaced.items():
            if key in container:
                yield Problem("InvalidPodTemplate", f"{where}.{key}", container[key], remedy)
        if "env" in container and container["env"] is None:
            remedy = "remove it, or write a list: null would remove all variables of the operator"
            yield Problem("InvalidPodTemplate", f"{where}.env", None, remedy)
