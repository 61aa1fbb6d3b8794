"""Reads what the checks look at; whatever the caller may not see is noted and left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from eldr import contract, routers
from eldr.doctor.facts import Answer, Facts, Listed, Object, Template, Unseen
from eldr.doctor.references import references
from eldr.doctor.templates import container, templates
from eldr.kubeconfig import ApiServer, ClusterError
from eldr.status.fields import inside, integer, objects, text

_PLURALS: Final = {
    "Secret": "secrets",
    "ConfigMap": "configmaps",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}
_LINES: Final = "300"
_BYTES: Final = "262144"
_MODELS: Final = "/v1/models"


def gather(server: ApiServer, name: str) -> Facts:
    """Read a deployment and what it stands on.

    Raises
    ------
    ClusterError
        If the EldrDeployment itself cannot be read.
    """
    deployment = server.deployment(name)
    core, apps = f"/api/v1/namespaces/{server.namespace}", f"/apis/apps/v1/namespaces/{server.namespace}"
    net = f"networking.k8s.io/v1/namespaces/{server.namespace}/networkpolicies"
    own = f"{contract.LABEL_DEPLOYMENT}={name}"
    made = f"{own},{contract.LABEL_MANAGED_BY}={contract.FIELD_MANAGER}"
    workloads = _both(
        _listed(server, f"{apps}/deployments", "deployments", made),
        _listed(server, f"{apps}/statefulsets", "statefulsets", made),
    )
    wanted = templates(deployment, workloads)
    # pods of fits carry the deployment's name too, and no role
    pods = _listed(server, f"{core}/pods", "pods", f"{own},{contract.LABEL_ROLE}")
    return Facts(
        deployment=deployment,
        templates=wanted,
        workloads=workloads,
        pods=pods,
        nodes=_listed(server, "/api/v1/nodes", "nodes"),
        quotas=_listed(server, f"{core}/resourcequotas", "resourcequotas"),
        limits=_listed(server, f"{core}/limitranges", "limitranges"),
        policies=_listed(server, f"/apis/{net}", "networkpolicies"),
        lease=_object(
            server,
            f"/apis/coordination.k8s.io/v1/namespaces/{server.namespace}/leases/{contract.SERVED_LEASE}",
            f"Lease {contract.SERVED_LEASE}",
            "leases",
        ),
        service=_object(server, f"{core}/services/{name}", f"Service {name}", "services"),
        referred=_referred(server, core, wanted, name),
        logs={} if isinstance(pods, Unseen) else _logs(server, core, pods),
        routers=_routers(server, name, pods),
    )


def _listed(server: ApiServer, path: str, plural: str, selector: str = "") -> Listed:
    try:
        items = server.read(path, plural, [("labelSelector", selector)] if selector else None).get("items")
    except ClusterError as error:
        return _unseen(error, f"list {plural}")
    if not isinstance(items, list):
        return Unseen(f"the list of {plural} could not be read")
    return tuple(one for one in items if isinstance(one, dict))


def _unseen(error: ClusterError, act: str) -> Unseen:
    return Unseen(f"may not {act}" if error.reason == "Forbidden" else f"could not {act}: {error}")


def _object(server: ApiServer, path: str, what: str, plural: str) -> Object | Unseen | None:
    try:
        return server.read(path, what)
    except ClusterError as error:
        return None if error.reason == "NotFound" else _unseen(error, f"get {plural}")


def _both(one: Listed, other: Listed) -> Listed:
    if isinstance(one, Unseen):
        return one
    return other if isinstance(other, Unseen) else one + other


def _referred(
    server: ApiServer, core: str, wanted: Iterable[Template], own: str
) -> dict[tuple[str, str], Object | Unseen | None]:
    referred: dict[tuple[str, str], Object | Unseen | None] = {}
    for one in references(wanted, own):
        where = (one.kind, one.name)
        if where in referred:
            continue
        plural = _PLURALS[one.kind]
        read = _object(server, f"{core}/{plural}/{one.name}", f"{one.kind} {one.name}", plural)
        referred[where] = _kept(read) if isinstance(read, dict) else read
    return referred


def _kept(resource: Object) -> Object:
    """Return an object with the names of its keys in place of what they hold."""
    keys = [*inside(resource, "data"), *inside(resource, "binaryData"), *inside(resource, "stringData")]
    kept = {key: resource.get(key) for key in ("metadata", "spec", "status")}
    return kept | {"keys": keys}


def _logs(server: ApiServer, core: str, pods: tuple[Object, ...]) -> dict[str, str | Unseen]:
    """Return the last lines of engines that have ended or are not ready, of the run that ended where there is one."""
    logs: dict[str, str | Unseen] = {}
    for pod in pods:
        name = text(inside(pod, "metadata"), "name")
        for status in objects(inside(pod, "status"), "containerStatuses"):
            if name is None or status.get("name") != contract.CONTAINER_ENGINE or status.get("ready") is True:
                continue
            if not status.get("containerID") and not integer(status, "restartCount"):
                continue  # it has never run
            query = {"container": contract.CONTAINER_ENGINE, "tailLines": _LINES, "limitBytes": _BYTES}
            if inside(status, "state", "waiting") and integer(status, "restartCount"):
                query["previous"] = "true"
            try:
                with server.get(
                    f"{core}/pods/{name}/log",
                    f"the log of pod {name}",
                    [*query.items()],
                    {"Accept": "text/plain, */*"},
                ) as got:
                    logs[name] = got.data.decode(errors="replace")
            except ClusterError as error:
                logs[name] = _unseen(error, "get pods/log")
    return logs


def _routers(server: ApiServer, name: str, known: Listed) -> tuple[Answer, ...] | Unseen:
    """Ask each router what a client asks first."""
    secure = (
        set() if isinstance(known, Unseen) else {one["metadata"]["name"] for one in known if _has_tls(one)}
    )
    try:
        pods = routers.running(server, name)
    except ClusterError as error:
        return _unseen(error, "list pods")
    answers = []
    for pod in pods:
        try:
            scheme = "https" if pod.name in secure else "http"
            status, said = routers.ask(server, pod, contract.PORT_ROUTER, _MODELS, scheme)
        except ClusterError as error:
            return _unseen(error, "get pods/proxy")
        answers.append(Answer(pod.name, status, said[:200]))
    return tuple(answers)


def _has_tls(pod: Object) -> bool:
    """Whether a pod's router speaks TLS: the pod may be older than the spec."""
    router = container(inside(pod, "spec"), contract.CONTAINER_ROUTER)
    return any(str(arg).startswith("--tls-certificate") for arg in router.get("args") or ())
