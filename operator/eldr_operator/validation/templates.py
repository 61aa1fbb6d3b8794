"""What a ``podTemplate`` would take from containers that the operator made: command, arguments, variables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.validation import names
from eldr_operator.workloads.podpatch import DIRECTIVE, empties
from eldr_operator.workloads.vllm import PLUGIN_CONTAINER

Object = dict[str, Any]

_REASON = "InvalidPodTemplate"
_OWN = "remove it: it would replace the operator's"
ROUTERS, FITS = "spec.router.podTemplate", "spec.refit.podTemplate"
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
    """Return the refused fields of engines, routers and fits."""
    return [
        *_of_pods(
            cr.spec.prefill.pod_template, "spec.prefill.podTemplate", dict(_made(cr, contract.ROLE_PREFILL))
        ),
        *_of_pods(
            cr.spec.decode.pod_template, "spec.decode.podTemplate", dict(_made(cr, contract.ROLE_DECODE))
        ),
        *_of_pods(cr.spec.router.pod_template, ROUTERS, {contract.CONTAINER_ROUTER: _router("containers")}),
        *_of_pods(
            cr.spec.refit.pod_template, FITS, {contract.CONTAINER_FIT: _Made("containers", _OWN, _OWN)}
        ),
    ]


def container_patches(patch: Object, field: str) -> Iterator[tuple[str, str, Object]]:
    """Yield the patches of containers by name, and where they stand.

    Parameters
    ----------
    field : str
        Path of the patch in the custom resource.
    """
    pod = patch.get("spec")
    for key in _LISTS:
        for index, name, container in names.named(pod.get(key) if isinstance(pod, dict) else None):
            yield name, f"{field}.spec.{key}[{index}]", container


def _of_pods(patch: Object, field: str, made: Mapping[str, _Made]) -> Iterator[Problem]:
    strings = "write names and strings, such as team: a"
    where, example = f"{field}.metadata", "{labels: {team: a}}"
    yield from _of_object(
        patch.get("metadata"), where, example, _are_strings, strings, "labels", "annotations"
    )
    yield from _of_lists(patch.get("spec"), f"{field}.spec", made)
    for name, where, container in container_patches(patch, field):
        if isinstance(image := container.get("image"), str) and not names.is_image(image):
            yield Problem(_REASON, f"{where}.image", image, names.IMAGE_REMEDY)
        probe, at, example = container.get("startupProbe"), f"{where}.startupProbe", "{periodSeconds: 10}"
        integer = "write a whole number"
        yield from _of_object(probe, at, example, _is_integer, integer, "periodSeconds", "failureThreshold")
        if name in made:
            yield from _of_container(made[name], where, container)


def _of_object(
    given: Any, where: str, example: str, kind: Callable[[Any], bool], remedy: str, *keys: str
) -> Iterator[Problem]:
    """Find what is no object, or has fields of another kind: the API server would only say so once they are merged.

    Parameters
    ----------
    kind : callable
        Tells whether a field can be used.
    keys : str
        The fields.
    """
    if not isinstance(given, dict | None):
        yield Problem(_REASON, where, given, f"write an object, such as {example}")
        return
    for key in keys:
        value = (given or {}).get(key)
        if value is not None and not kind(value):
            yield Problem(_REASON, f"{where}.{key}", value, remedy)


def _are_strings(given: Any) -> bool:
    return isinstance(given, dict) and all(isinstance(value, str | None) for value in given.values())


def _is_integer(given: Any) -> bool:
    return type(given) is int


def _made(cr: EldrDeployment, role: str) -> Iterator[tuple[str, _Made]]:
    if cr.spec.engine.type == "vLLM":
        image = f"{_OWN}; a start of your own belongs into spec.engine.image, as its vllm"
        lists = f"remove it: it would replace all arguments of the operator; write yours into spec.{role}.args or spec.engine.args"
        yield contract.CONTAINER_ENGINE, _Made("containers", image, lists)
        yield PLUGIN_CONTAINER, _Made("initContainers", _OWN, _OWN)
    if role == contract.ROLE_PREFILL and cr.spec.router.placement == "Sidecar":
        yield contract.CONTAINER_ROUTER, _router("initContainers")


def _router(where: str) -> _Made:
    image = f"{_OWN}; a start of your own belongs into spec.router.image, as its eldr"
    lists = "remove it: it would replace all arguments of the operator; write yours into spec.router.args"
    return _Made(where, image, lists)


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
        remedy = "remove it: it would remove the container that the operator made"
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
