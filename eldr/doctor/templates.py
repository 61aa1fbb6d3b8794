"""Pods of a deployment as they are to be: from its workloads, or from the spec where there are none yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from eldr import contract
from eldr.admin_tls import AUTHORITY_KEY
from eldr.doctor.facts import Listed, Object, Template, Unseen
from eldr.status.fields import inside, integer, objects, text

_ENGINES = (contract.ROLE_PREFILL, contract.ROLE_DECODE)
_RESOURCE = "amd.com/gpu"


def templates(deployment: Object, workloads: Listed) -> tuple[Template, ...]:
    """Return the pods that a deployment is to have.

    Parameters
    ----------
    workloads : Listed
        The operator's. A role without one is drafted from the spec: enough to see what it names.
    """
    made = {} if isinstance(workloads, Unseen) else dict(_made(workloads))
    drafts = {one.role: one for one in _drafts(deployment)}
    return tuple((drafts | made).values())


def engine(template: Template) -> Object:
    """Return the container that runs the engine; an empty one where there is none."""
    return container(template.spec, contract.CONTAINER_ENGINE)


def container(spec: Object, name: str) -> Object:
    """Return a container of a pod by its name."""
    return next((one for one in containers(spec) if one.get("name") == name), {})


def containers(spec: Object) -> Iterator[Object]:
    """Yield all containers of a pod, those first that start first."""
    yield from objects(spec, "initContainers")
    yield from objects(spec, "containers")


def variables(spec: Object) -> dict[str, Object]:
    """Return the environment of a container by name."""
    return {str(one.get("name")): one for one in objects(spec, "env")}


def _made(workloads: tuple[Object, ...]) -> Iterator[tuple[str, Template]]:
    for workload in workloads:
        template = inside(workload, "spec", "template")
        labels = inside(template, "metadata", "labels")
        role = text(labels, contract.LABEL_ROLE)
        if role is not None:
            replicas = integer(inside(workload, "spec"), "replicas")
            made = Template(role, 1 if replicas is None else replicas, inside(template, "spec"), labels)
            yield role, made


def _drafts(deployment: Object) -> Iterator[Template]:
    spec = inside(deployment, "spec")
    name = str(inside(deployment, "metadata").get("name"))
    resource = text(inside(spec, "accelerator"), "resourceName") or _RESOURCE
    for role in _ENGINES:
        role_spec = inside(spec, role)
        gpus = integer(role_spec, "gpus")
        devices = {resource: str(1 if gpus is None else gpus)} if gpus != 0 else {}
        resources = inside(role_spec, "resources")
        patch = inside(role_spec, "podTemplate", "spec")
        patched = container(patch, contract.CONTAINER_ENGINE)
        drafted = {
            "name": contract.CONTAINER_ENGINE,
            "env": [
                *_token(spec),
                *objects(inside(spec, "engine"), "env"),
                *objects(role_spec, "env"),
                *objects(patched, "env"),
            ],
            "resources": {
                part: {**inside(resources, part), **inside(patched, "resources", part), **devices}
                for part in ("requests", "limits")
            },
        }
        kept = {key: value for key, value in patched.items() if key not in drafted}
        others = [one for one in objects(patch, "containers") if one.get("name") != contract.CONTAINER_ENGINE]
        replicas = integer(role_spec, "replicas")
        labels = {contract.LABEL_DEPLOYMENT: name, contract.LABEL_ROLE: role}
        volumes = [*objects(patch, "volumes"), *_claims(spec)]
        if role == contract.ROLE_PREFILL and not _is_apart(spec):
            labels[contract.LABEL_ROUTER] = "true"
            volumes += _of_clients(spec)
        yield Template(
            role,
            1 if replicas is None else replicas,
            patch | {"containers": [kept | drafted, *others], "volumes": volumes},
            labels,
        )
    if _is_apart(spec):
        replicas = integer(inside(spec, "router"), "replicas")
        labels = {contract.LABEL_DEPLOYMENT: name, contract.LABEL_ROUTER: "true"}
        yield Template("router", 1 if replicas is None else replicas, {"volumes": _of_clients(spec)}, labels)


def _is_apart(spec: Object) -> bool:
    """Tell whether routers have pods of their own."""
    return text(inside(spec, "router"), "placement") == "Deployment"


def _token(spec: Object) -> list[Object]:
    secret = inside(spec, "model", "tokenSecret")
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}] if secret else []


def _claims(spec: Object) -> list[Object]:
    """Return the volumes of the model's claims."""
    named = (text(inside(spec, "model", kind), "claimName") for kind in ("cache", "source"))
    return [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in named if name]


def _of_clients(spec: Object) -> list[Object]:
    """Return the volumes of what routers know clients by, and prove themselves with."""
    router, volumes = inside(spec, "router"), []
    pair = [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]
    if keys := text(router, "apiKeysSecret"):
        volumes.append({"name": keys, "secret": {"secretName": keys}})
    if tls := text(router, "tlsSecret"):
        volumes.append({"name": tls, "secret": {"secretName": tls, "items": pair}})
    if admin := inside(router, "adminTLS"):
        shown = {"secretName": text(admin, "secretName"), "items": pair}
        volumes.append({"name": "admin-tls", "secret": shown})
        authority = {"name": text(admin, "authorityConfigMap"), "items": [{"key": AUTHORITY_KEY}]}
        volumes.append({"name": "admin-authority", "configMap": authority})
    return volumes
