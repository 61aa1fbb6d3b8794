"""Revisions: the pod template of each role, as it was made when something that decides about its pods changed last.

Each is kept in a ControllerRevision with a digest of what it was made from. Pure.

References
----------
.. [1] Kubernetes API, ControllerRevision: "an immutable snapshot of state data".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import clock, meta
from eldr_operator.camel import CamelModel
from eldr_operator.kube.owners import is_ours, owner_uids
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.vllm import sequences

Object = dict[str, Any]

KIND = "ControllerRevision"
ANNOTATION_INPUTS = f"{contract.GROUP}/inputs"
ANNOTATION_REVISION = f"{contract.GROUP}/revision"
ANNOTATION_BEGUN = f"{contract.GROUP}/begun"
"""When the pods of a workload began to get the revision that it has, where they had another one before."""
KEPT = 10
"""Of each role."""
WORKLOADS = {
    contract.ROLE_PREFILL: "Deployment",
    contract.ROLE_DECODE: "StatefulSet",
    contract.ROLE_ROUTER: "Deployment",
}

_MODEL_OF_ROUTERS = {"uri", "name"}
_MODEL_OF_ENGINES = {"revision", "token_secret", "source", "cache"}


class Revision(NamedTuple):
    """One state of the pods of a role.

    Attributes
    ----------
    inputs : str
        Digest of what of the spec decides about them.
    template : dict
        Of the pods.
    images : Images
        Those that it was made with.
    number : int
        Later ones have higher numbers.
    maker : str
        The build of the operator that made it.
    made : str
        Digest of the template as that one made it; what it adopted is another.
    completed : str
        When all pods were available with it last, as a time stamp; empty if never.
    failed : str
        When it was given up because it failed.
    """

    name: str
    role: str
    number: int
    inputs: str
    template: Object
    images: Images
    maker: str
    made: str
    completed: str = ""
    failed: str = ""


def manifest(cr: EldrDeployment, revision: Revision) -> Object:
    """Return the object that keeps a revision."""
    head = meta.manifest("apps/v1", KIND, cr, revision.name, revision.role)
    head["metadata"]["labels"][contract.LABEL_REVISION_OF] = revision.role
    marks = {contract.ANNOTATION_COMPLETED: revision.completed, contract.ANNOTATION_FAILED: revision.failed}
    head["metadata"]["annotations"] = {ANNOTATION_INPUTS: revision.inputs} | {
        name: value for name, value in marks.items() if value
    }
    data = {
        "template": revision.template,
        "images": revision.images._asdict(),
        "maker": revision.maker,
        "made": revision.made,
    }
    return head | {"data": data, "revision": revision.number}


def frozen(workload: Object, revision: Revision, live: Mapping[str, Any] | None, now: datetime) -> Object:
    """Return a workload with the template of a revision, whose name it carries, and since when.

    Parameters
    ----------
    live : mapping or None
        The workload as it is.
    """
    metadata = workload["metadata"]
    annotations = metadata.get("annotations", {}) | {
        ANNOTATION_REVISION: revision.name,
        ANNOTATION_INPUTS: revision.inputs,
    }
    if live is not None and name_of(live):
        begun = begun_of(live) if name_of(live) == revision.name else clock.stamp(now)
        annotations |= {ANNOTATION_BEGUN: begun} if begun else {}
    spec = workload["spec"] | {"template": revision.template}
    return workload | {"metadata": metadata | {"annotations": annotations}, "spec": spec}


def live_workload(cr: EldrDeployment, live: Snapshot, role: str) -> Object | None:
    """Return the workload of a role as it is; None if there is none of ours."""
    return live.ours(WORKLOADS[role], meta.child_name(cr, role), cr.name, cr.metadata.uid)


def in_use(cr: EldrDeployment, live: Snapshot, role: str, existing: Iterable[Revision]) -> Revision | None:
    """Return the one of some revisions that the workload of a role has; None if that is none of them."""
    workload = live_workload(cr, live, role)
    name = name_of(workload) if workload is not None else ""
    return next((each for each in existing if each.name == name), None)


def name_of(workload: Mapping[str, Any]) -> str:
    """Return the name of the revision that a workload has; empty if a release without revisions has written it."""
    return str((workload["metadata"].get("annotations") or {}).get(ANNOTATION_REVISION, ""))


def begun_of(workload: Mapping[str, Any]) -> str:
    """Return since when a workload has its revision, as a time stamp; empty if it had no other one before."""
    return _stamp((workload["metadata"].get("annotations") or {}).get(ANNOTATION_BEGUN))


def revision_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the revision that a pod has; empty if a release without revisions has made it."""
    return str((pod["metadata"].get("labels") or {}).get(contract.LABEL_REVISION, ""))


def role_of(workload: Object) -> str:
    """Return the role whose pods a manifest describes; empty for other kinds."""
    role = workload["metadata"]["labels"][contract.LABEL_COMPONENT]
    return role if WORKLOADS.get(role) == workload["kind"] else ""


def surplus(
    cr: EldrDeployment, live: Snapshot, used: Mapping[str, Collection[str]]
) -> list[tuple[str, Object]]:
    """Return the objects of revisions that are too old to be kept, each with its kind.

    Parameters
    ----------
    used : mapping
        Role to the names of the revisions that its pods have or may get again. Those of other roles stay: which one is in use
        is not known.
    """
    old: list[Object] = []
    for role, names in used.items():
        rest = [one for one in _objects(cr, live, role) if one["metadata"]["name"] not in names]
        old += rest[: max(0, len(rest) - KEPT + len(names))]
    return [(KIND, one) for one in old]


def unowned(cr: EldrDeployment, live: Snapshot) -> list[tuple[Object, Object]]:
    """Return objects of revisions that nobody owns, each behind what it lacks: they would outlive the deployment, for another of its name."""
    orphans = [one for role in WORKLOADS for one in _objects(cr, live, role) if not owner_uids(one)]
    return [(_head(cr, one), one) for one in orphans]


def _head(cr: EldrDeployment, live: Object) -> Object:
    metadata = {name: live["metadata"][name] for name in ("name", "namespace", "labels")}
    return {"kind": KIND, "metadata": metadata | {"ownerReferences": [meta.owner_of(cr)]}}


def inputs(cr: EldrDeployment, role: str) -> str:
    """Return a digest of what of the spec decides about the pods of a role; fields at their defaults do not count.

    So a field that a later release adds changes no digest until somebody sets it.
    """
    spec = cr.spec
    fields: Object = {"model": _set(spec.model, _MODEL_OF_ROUTERS), "served": cr.served_model}
    if role != contract.ROLE_ROUTER:
        fields["model"] = _set(spec.model, _MODEL_OF_ROUTERS | _MODEL_OF_ENGINES)
        of_role = spec.prefill if role == contract.ROLE_PREFILL else spec.decode
        fields |= {
            "engine": _set(spec.engine),
            "accelerator": _set(spec.accelerator),
            "role": _set(of_role),
        }
    if role == contract.ROLE_DECODE:
        fields["sequences"] = sequences(cr)
    if role == contract.ROLE_ROUTER or (role == contract.ROLE_PREFILL and spec.router.placement == "Sidecar"):
        kept = {"placement", "image", "image_pull_policy", "args", "env", "resources", "drain_seconds"}
        kept |= {"api_keys_secret", "tls_secret", "admin_tls"}
        if role == contract.ROLE_ROUTER:
            kept |= {"pod_template"}
        fields["router"] = _set(spec.router, kept)
        fields["log"] = _set(spec.signatures, {"retention_mebibytes", "retention_hours"})
    return meta.digest(fields)


def _set(part: CamelModel, fields: set[str] | None = None) -> Object:
    return part.model_dump(
        mode="json", include=fields, exclude={"replicas", "rollout"}, exclude_defaults=True
    )


def kept(cr: EldrDeployment, live: Snapshot, role: str) -> list[Revision]:
    """Return the revisions of a role, the oldest first; what is damaged is none."""
    return [*filter(None, map(_read, _objects(cr, live, role)))]


def _objects(cr: EldrDeployment, live: Snapshot, role: str) -> list[Object]:
    objects = [
        one
        for one in live.of_kind(KIND).values()
        if one["metadata"]["labels"].get(contract.LABEL_REVISION_OF) == role
        and is_ours(one, cr.name, cr.metadata.uid)
    ]
    return sorted(objects, key=lambda one: (one["revision"], one["metadata"]["name"]))


def _read(live: Object) -> Revision | None:
    """Return what an object keeps; None where that is damaged: what runs is adopted then, as from a release without revisions."""
    metadata = live["metadata"]
    annotations = metadata.get("annotations") or {}
    made_from = annotations.get(ANNOTATION_INPUTS, "")
    marks = (
        _stamp(annotations.get(name)) for name in (contract.ANNOTATION_COMPLETED, contract.ANNOTATION_FAILED)
    )
    role = metadata["labels"][contract.LABEL_REVISION_OF]
    try:
        data = live["data"]
        images = Images(str(data["images"]["own"]), str(data["images"]["vllm"]))
        content = dict(data["template"]), images, str(data["maker"]), str(data["made"])
    except (KeyError, TypeError, ValueError):
        return None
    return Revision(metadata["name"], role, live["revision"], made_from, *content, *marks)


def _stamp(value: object) -> str:
    """Return a time stamp as it is written; empty for what is none."""
    at = clock.read(value)
    return "" if at is None else clock.stamp(at)
