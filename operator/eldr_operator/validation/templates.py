"""What a ``podTemplate`` would take from containers that the operator made: command, arguments, variables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment, RoleSpec
from eldr_operator.validation import names
from eldr_operator.workloads.podpatch import DIRECTIVE, empties
from eldr_operator.workloads.vllm import PLUGIN_CONTAINER

Object = dict[str, Any]

_REASON = "InvalidPodTemplate"
_LISTS = ("containers", "initContainers")


@dataclass(frozen=True, slots=True)
class _Made:
    """A container that the operator made.

    Parameters
    ----------
    where : str
        List of the pod that it stands in.
    command, args : str
        What to do instead of replacing them.
    """

    where: str
    command: str
    args: str


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused fields of both roles."""
    roles = {contract.ROLE_PREFILL: cr.spec.prefill, contract.ROLE_DECODE: cr.spec.decode}
    return [problem for role, spec in roles.items() for problem in _of_role(cr, role, spec)]


def container_patches(role: RoleSpec, field: str) -> Iterator[tuple[str, str, Object]]:
    """Yield the patches of containers by name, and where they stand.

    Parameters
    ----------
    field : str
        Path of the role in the custom resource.
    """
    pod = role.pod_template.get("spec")
    for key in _LISTS:
        for index, name, container in names.named(pod.get(key) if isinstance(pod, dict) else None):
            yield name, f"{field}.podTemplate.spec.{key}[{index}]", container


def _of_role(cr: EldrDeployment, role: str, spec: RoleSpec) -> Iterator[Problem]:
    made = dict(_made(cr, role))
    yield from _of_lists(spec.pod_template.get("spec"), f"spec.{role}.podTemplate.spec", made)
    for name, where, container in container_patches(spec, f"spec.{role}"):
        if isinstance(image := container.get("image"), str) and not names.is_image(image):
            yield Problem(_REASON, f"{where}.image", image, names.IMAGE_REMEDY)
        if name in made:
            yield from _of_container(made[name], where, container)


def _made(cr: EldrDeployment, role: str) -> Iterator[tuple[str, _Made]]:
    own = "remove it: it would replace the operator's"
    if cr.spec.engine.type == "vLLM":
        image = f"{own}; a start of your own belongs into spec.engine.image, as its vllm"
        lists = f"remove it: it would replace all arguments of the operator; write yours into spec.{role}.args or spec.engine.args"
        yield contract.CONTAINER_ENGINE, _Made("containers", image, lists)
        yield PLUGIN_CONTAINER, _Made("initContainers", own, own)
    if role == contract.ROLE_PREFILL and cr.spec.router.placement == "Sidecar":
        image = f"{own}; a start of your own belongs into spec.router.image, as its eldr"
        lists = "remove it: it would replace all arguments of the operator; write yours into spec.router.args"
        yield contract.CONTAINER_ROUTER, _Made("initContainers", image, lists)


def _of_lists(pod: Any, where: str, made: Mapping[str, _Made]) -> Iterator[Problem]:
    """Find lists that the operator's containers would go with."""
    for key in _LISTS:
        lost = ", ".join(name for name, each in made.items() if each.where == key)
        if not lost or not isinstance(pod, dict) or key not in pod:
            continue
        containers = pod[key]
        remedy = f"remove it: it would remove {lost}, which the operator made"
        if containers is None:
            yield Problem(_REASON, f"{where}.{key}", None, remedy)
        elif isinstance(containers, list) and any(map(empties, containers)):
            index = next(index for index, item in enumerate(containers) if empties(item))
            yield Problem(_REASON, f"{where}.{key}[{index}]", containers[index], remedy)


def _of_container(made: _Made, where: str, container: Object) -> Iterator[Problem]:
    # Lists of arguments have no key to be merged by: whatever stands there replaces what the operator made.
    for key, remedy in {"command": made.command, "args": made.args}.items():
        if key in container:
            yield Problem(_REASON, f"{where}.{key}", container[key], remedy)
    if container.get(DIRECTIVE, "merge") != "merge":
        remedy = "remove it: it would take the container that the operator made"
        yield Problem(_REASON, f"{where}.{DIRECTIVE}", container[DIRECTIVE], remedy)
    if made.where == "initContainers" and "restartPolicy" in container:
        remedy = "remove it: the operator sets when this container runs"
        yield Problem(_REASON, f"{where}.restartPolicy", container["restartPolicy"], remedy)
    for key, what in {"env": "variables", "volumeMounts": "mounts"}.items():
        if key not in container:
            continue
        items = container[key]
        if items is None or (isinstance(items, list) and any(map(empties, items))):
            remedy = f"remove it, or write a list: it would remove all {what} of the operator"
            yield Problem(_REASON, f"{where}.{key}", items, remedy)
