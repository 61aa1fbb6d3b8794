"""The engine ``Simulator``: our own image, no accelerator needed. Pure."""

from __future__ import annotations

from eldr import contract
from eldr_operator.models import EldrDeployment, RoleSpec
from eldr_operator.workloads import pods
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.pods import EnginePod


def engine_pod(cr: EldrDeployment, role: str, spec: RoleSpec, images: Images) -> EnginePod:
    """Return what is the simulator's own in a pod of a role."""
    engine = cr.spec.engine
    arguments = [
        "engine-sim",
        f"--role={role}",
        f"--host=$({contract.ENV_POD_IP})",
        f"--port={contract.PORT_ENGINE}",
        f"--model={cr.served_model}",
        f"--lease-seconds={engine.lease_seconds}",
        f"--shutdown-timeout={spec.drain_seconds}",
        *engine.args,
        *spec.args,
    ]
    container = pods.engine_container(
        cr, spec, image=engine.image or images.own, command=["eldr"], args=arguments, env=[]
    )
    health, port = contract.PATH_HEALTH, contract.PORT_ENGINE
    container |= {
        "startupProbe": pods.probe(health, port, period=1, failures=120),
        "livenessProbe": pods.probe(health, port, period=10, failures=6, timeout=5),
        "readinessProbe": pods.probe(health, port, period=2, failures=2),
        "securityContext": pods.CONTAINER_SECURITY,
        "volumeMounts": [pods.TMP_MOUNT],
    }
    return EnginePod(container=container, security=pods.POD_SECURITY, volumes=(pods.TMP_VOLUME,))
