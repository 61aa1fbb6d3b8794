"""Environment variables of engines and routers that would undo what the operator has set up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment, RoleSpec
from eldr_operator.validation import names, routers
from eldr_operator.validation.templates import container_patches
from eldr_operator.workloads.vllm import PLUGIN, PLUGIN_DIR, SIDE_CHANNEL_PORT

Object = dict[str, Any]


def _is_false(value: str) -> bool:
    """Tell whether vLLM reads a flag as false; it ends at its start where the value is no number."""
    try:
        return not int(value)
    except ValueError:
        return False


_RULES: Mapping[str, tuple[Callable[[str], bool] | None, str]] = {
    "VLLM_DP_SIZE": (
        lambda value: value.strip() == "1",
        "remove it: use more replicas, or, for decode engines whose ranks share their experts, spec.decode.parallelism.data",
    ),
    contract.ENV_BALANCE: (None, "remove it: it is spec.decode.parallelism.balance"),
    "VLLM_NIXL_SIDE_CHANNEL_HOST": (
        None,
        "remove it: the operator sets it to the pod's address, where decode engines ask for KV blocks",
    ),
    "VLLM_NIXL_SIDE_CHANNEL_PORT": (
        lambda value: value.strip() == str(SIDE_CHANNEL_PORT),
        f"remove it: the port that pods open for it is {SIDE_CHANNEL_PORT}",
    ),
    "VLLM_USE_RUST_FRONTEND": (
        _is_false,
        "remove it: that HTTP server does not load the plugin's endpoint, where routers fetch activations",
    ),
    "VLLM_PLUGINS": (
        lambda value: PLUGIN in value.split(","),
        f"write {PLUGIN},... : it is the list of all plugins that vLLM may load, and without ours engines do not start",
    ),
    "PYTHONPATH": (
        lambda value: PLUGIN_DIR in value.split(":"),
        f"write {PLUGIN_DIR}:... : the plugin that counts experts lies there, and without it engines do not start",
    ),
}
"""By name: which values do no harm, None for no value at all; and what to do instead."""


_IDENTITY: Mapping[str, str] = {
    contract.ENV_POD_IP: "status.podIP",
    contract.ENV_POD_NAME: "metadata.name",
    contract.ENV_POD_NAMESPACE: "metadata.namespace",
}
"""By name: the field of the pod that the operator's arguments count on."""


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused variables of engines and routers, wherever they are given."""
    spec = cr.spec
    return [
        *_of_engine(cr, spec.engine.env, "spec.engine.env"),
        *_of_role(cr, spec.prefill, "spec.prefill"),
        *_of_role(cr, spec.decode, "spec.decode"),
        *_identity(spec.router.env, "spec.router.env"),
        *_of_template(cr, spec.router.pod_template, "spec.router.podTemplate"),
        *_of_template(cr, spec.refit.pod_template, "spec.refit.podTemplate"),
    ]


def _of_role(cr: EldrDeployment, role: RoleSpec, field: str) -> Iterator[Problem]:
    yield from _of_engine(cr, role.env, f"{field}.env")
    yield from _of_template(cr, role.pod_template, f"{field}.podTemplate")


def _of_template(cr: EldrDeployment, patch: Object, field: str) -> Iterator[Problem]:
    for name, where, container in container_patches(patch, field):
        variables, here = container.get("env"), f"{where}.env"
        yield from _names(variables, here)
        if name == contract.CONTAINER_ENGINE:
            yield from _of_engine(cr, variables, here)
        elif name == contract.CONTAINER_ROUTER:
            yield from _identity(variables, here)
            yield from routers.variables(variables, here)
        elif name == contract.CONTAINER_FIT:
            yield from _identity(variables, here)


def _of_engine(cr: EldrDeployment, variables: Any, field: str) -> Iterator[Problem]:
    yield from _identity(variables, field)
    if cr.spec.engine.type == "vLLM":
        yield from _refused(variables, field)


def _names(variables: Any, field: str) -> Iterator[Problem]:
    """Find names that the schema refuses elsewhere."""
    for index, name, _ in names.named(variables):
        if not names.is_variable(name):
            yield Problem("InvalidVariable", f"{field}[{index}].name", name, names.VARIABLE_REMEDY)


def _identity(variables: Any, field: str) -> Iterator[Problem]:
    for index, name, variable in names.named(variables):
        if name not in _IDENTITY:
            continue
        source = variable.get("valueFrom")
        reference = source.get("fieldRef") if isinstance(source, dict) else None
        if not isinstance(reference, dict) or reference.get("fieldPath") != _IDENTITY[name]:
            remedy = f"remove it: it is the pod's own {_IDENTITY[name]}, which arguments of the operator use"
            yield Problem("InvalidVariable", f"{field}[{index}]", name, remedy)


def _refused(variables: Any, field: str) -> Iterator[Problem]:
    for index, name, variable in names.named(variables):
        if name not in _RULES:
            continue
        is_harmless, remedy = _RULES[name]
        # What a Secret or ConfigMap will say is not known here; the engine's log is the place for that.
        value = None if "valueFrom" in variable else str(variable.get("value") or "")
        if is_harmless is None or (value is not None and not is_harmless(value)):
            shown = name if value is None else f"{name}={value}"
            yield Problem("InvalidVariable", f"{field}[{index}]", shown, remedy)
