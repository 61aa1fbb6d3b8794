"""The engine ``vLLM``: a stock image, into which an init container brings the plugin that counts experts. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from eldr import contract
from eldr_operator.models import EldrDeployment, RoleSpec
from eldr_operator.workloads import parallelism, pods, weights
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.pods import EnginePod

Object = dict[str, Any]

STARTUP_SECONDS: Final = 3600
"""Loading weights from a cold cache and compiling kernels may take so long."""

PLUGIN: Final = "eldr"
"""The name by which vLLM loads the plugin."""
PLUGIN_DIR: Final = "/eldr/plugin"
PLUGIN_CONTAINER: Final = "eldr-plugin"
_CACHE_DIR: Final = "/eldr/cache"
SIDE_CHANNEL_PORT: Final = 5600
"""vLLM's default; decode engines ask prefill engines here where their KV blocks lie."""
_SHARED_MEMORY: Final = "16Gi"
_SEQUENCES: Final = 256
"""What vLLM has room for by itself, on small accelerators; on those of 70 GiB and more it has 1024."""
_STARTUP_PERIOD: Final = 10
_QUIET_PATHS: Final = (
    contract.PATH_HEALTH,
    contract.PATH_METRICS,
    "/v1/models",
    contract.PATH_ACTIVATIONS,
    contract.PATH_LOAD,
)


def engine_pod(cr: EldrDeployment, role: str, spec: RoleSpec, images: Images) -> EnginePod:
    """Return what is vLLM's own in a pod of a role."""
    engine = cr.spec.engine
    container = pods.engine_container(
        cr,
        spec,
        image=engine.image or images.vllm,
        command=["vllm"],
        args=_arguments(cr, role, spec),
        env=_environment(cr, role, spec),
    )
    container["ports"].append({"name": "nixl", "containerPort": SIDE_CHANNEL_PORT, "protocol": "TCP"})
    health, port = contract.PATH_HEALTH, contract.PORT_ENGINE
    container |= {
        "startupProbe": pods.probe(
            health, port, period=_STARTUP_PERIOD, failures=STARTUP_SECONDS // _STARTUP_PERIOD, timeout=5
        ),
        "livenessProbe": pods.probe(health, port, period=10, failures=6, timeout=5),
        "readinessProbe": pods.probe(health, port, period=5, failures=3, timeout=5),
        # Stock images run as root, which owns the devices, and compile kernels into their own file system.
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - inside the container
            {"name": "cache", "mountPath": _CACHE_DIR},
            {"name": "plugin", "mountPath": PLUGIN_DIR, "readOnly": True},
            *weights.mounts(cr.spec.model),
        ],
    }
    return EnginePod(
        container=container,
        security={"seccompProfile": pods.POD_SECURITY["seccompProfile"]},
        volumes=(
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}},
            {"name": "cache", "emptyDir": {}},
            {"name": "plugin", "emptyDir": {}},
            *weights.volumes(cr.spec.model),
        ),
        init_containers=(_plugin(images.own),),
    )


def sequences(cr: EldrDeployment) -> int:
    """Return how many a decode engine has to run at once: as many as routers send, as those that wait may lose their KV.

    A lower limit of the routers than vLLM's own changes nothing about its pod.
    """
    return max(_SEQUENCES, cr.spec.router.max_in_flight_per_decode)


def _plugin(image: str) -> Object:
    """Return the init container that copies our package, without dependencies, to where vLLM finds it."""
    return {
        "name": PLUGIN_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["eldr"],
        "args": ["engine-plugin", PLUGIN_DIR],
        "resources": pods.resources(pods.OWN_REQUESTS),
        "securityContext": pods.UNPRIVILEGED,
        "volumeMounts": [{"name": "plugin", "mountPath": PLUGIN_DIR}],
    }


def _arguments(cr: EldrDeployment, role: str, spec: RoleSpec) -> list[str]:
    needed = sequences(cr) if role == contract.ROLE_DECODE else 0
    batch = [f"--max-num-seqs={needed}"] if needed > _SEQUENCES else []
    return [
        "serve",
        weights.location(cr.spec.model),
        f"--served-model-name={cr.served_model}",
        f"--host=$({contract.ENV_POD_IP})",
        f"--port={contract.PORT_ENGINE}",
        f"--kv-transfer-config={_kv_transfer(cr, role)}",
        f"--shutdown-timeout={spec.drain_seconds}",
        *parallelism.arguments(spec),
        *batch,
        f"--disable-access-log-for-endpoints={','.join(_QUIET_PATHS)}",
        *weights.arguments(cr.spec.model),
        *cr.spec.engine.args,
        *spec.args,
    ]


def _kv_transfer(cr: EldrDeployment, role: str) -> str:
    """Return the connectors: NIXL moves KV blocks, ours counts experts beside it and keeps the deadlines of pulls.

    Never an ``engine_id``: a restarted engine with the id of the old one is refused by all that knew the old one.
    """
    is_prefill = role == contract.ROLE_PREFILL
    kv_role = "kv_producer" if is_prefill else "kv_consumer"
    transport: Object = {"kv_connector": "NixlConnector", "kv_role": kv_role}
    if is_prefill:
        transport["kv_connector_extra_config"] = {"kv_lease_duration": cr.spec.engine.lease_seconds}
    counting = {"kv_connector": contract.CONNECTOR, "kv_role": kv_role}
    # Ours comes first: NIXL frees the blocks of a pull that it refuses, and never sees parameters that would end the engine.
    config: Object = {
        "kv_connector": "MultiConnector",
        "kv_role": kv_role,
        "kv_connector_extra_config": {"connectors": [counting, transport]},
    }
    if not is_prefill:
        # Recomputing hides a lost prefill from the router, which knows better where to send the request next.
        config["kv_load_failure_policy"] = "fail"
    return json.dumps(config, separators=(",", ":"))


def _environment(cr: EldrDeployment, role: str, spec: RoleSpec) -> list[Object]:
    values = {
        "VLLM_PLUGINS": PLUGIN,
        "PYTHONPATH": PLUGIN_DIR,
        "HOME": _CACHE_DIR,
        "XDG_CACHE_HOME": _CACHE_DIR,
        "VLLM_CACHE_ROOT": f"{_CACHE_DIR}/vllm",
        "TRITON_CACHE_DIR": f"{_CACHE_DIR}/triton",
    }
    values |= parallelism.environment(spec)
    if cr.spec.accelerator.resource_name.startswith("amd.com/"):
        values |= {"VLLM_ROCM_USE_AITER": "1", "AITER_JIT_DIR": f"{_CACHE_DIR}/aiter"}
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [
        {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address},
        *({"name": name, "value": value} for name, value in values.items()),
        *weights.environment(cr.spec.model, role),
    ]
