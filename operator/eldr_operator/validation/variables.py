"""Environment variables for vLLM that would undo what the operator has set up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment, RoleSpec
from eldr_operator.validation.templates import engine_patches
from eldr_operator.workloads.vllm import PLUGIN, PLUGIN_DIR, SIDE_CHANNEL_PORT

Object = dict[str, Any]


def _is_false(value: str) -> bool:
    """Tell whether vLLM reads a flag as false; it ends at its start where the value is no number."""
    try:
        return not int(value)
    except ValueError:
        return False


_RULES: Mapping[str, tuple[Callable[[str], bool] | None, str]] = {
    "VLLM_USE_V2_MODEL_RUNNER": (None, "remove it: the runner is spec.engine.modelRunner"),
    "VLLM_DP_SIZE": (
        lambda value: value.strip() == "1",
        "remove it: one address would hide several batches, among which routers cannot choose; use more replicas",
    ),
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


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused variables of an engine's three sources; only vLLM's are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    spec = cr.spec
    return [
        *_refused(spec.engine.env, "spec.engine.env"),
        *_of_role(spec.prefill, "spec.prefill"),
        *_of_role(spec.decode, "spec.decode"),
    ]


def _of_role(role: RoleSpec, field: str) -> Iterator[Problem]:
    yield from _refused(role.env, f"{field}.env")
    for where, container in engine_patches(role, field):
        variables = container.get("env")
        yield from _refused(variables if isinstance(variables, list) else (), f"{where}.env")


def _refused(variables: Iterable[Object], field: str) -> Iterator[Problem]:
    for index, variable in enumerate(variables):
        name = variable.get("name") if isinstance(variable, dict) else None
        if not isinstance(name, str) or name not in _RULES:
            continue
        is_harmless, remedy = _RULES[name]
        # What a Secret or ConfigMap will say is not known here; the engine's log is the place for that.
        value = None if "valueFrom" in variable else str(variable.get("value") or "")
        if is_harmless is None or (value is not None and not is_harmless(value)):
            shown = name if value is None else f"{name}={value}"
            yield Problem("InvalidVariable", f"{field}[{index}]", shown, remedy)
