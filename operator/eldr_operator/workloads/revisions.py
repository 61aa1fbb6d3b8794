"""Revisions: the pod template of each role, as it was made when something that decides about its pods changed last.

Another release of the operator makes other templates from the same spec. Pods must not restart for that, so each template is
kept in a ControllerRevision with a digest of what it was made from, and stays until that changes, or ``spec.update`` says so.
Under the release that made it, any other template is a change, whatever the digest says. Pure.

References
----------
.. [1] Kubernetes API, ControllerRevision: "an immutable snapshot of state data".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import eldr
from eldr import contract
from eldr_operator import clock, meta
from eldr_operator.camel import CamelModel
from eldr_operator.drift import maintenance
from eldr_operator.kube.owners import is_ours, owner_uids
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.vllm import PLUGIN_CONTAINER, sequences

Object = dict[str, Any]

KIND = "ControllerRevision"
ANNOTATION_INPUTS = f"{contract.GROUP}/inputs"
ANNOTATION_REVISION = f"{contract.GROUP}/revision"
ANNOTATION_BEGUN = f"{contract.GROUP}/begun"
"""When the pods of a workload began to get the revision that it has, where they had another one before."""
KEPT = 10
"""Of each role."""
_WORKLOADS = {
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
        The operator that made it.
    made : str
        Digest of the template as that one made it; what it adopted is another.
    completed : str
        When all pods were ready with it last, as a time stamp; empty if never.
    failed : str
        When it was given up because no pod got ready with it.
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


class Plan(NamedTuple):
    """What is known of a deployment's revisions, and which images its pods are made with.

    Attributes
    ----------
    found : mapping
        Role to its revisions, the oldest first.
    images : Images
        Of the operator where it may update, else those that run.
    newer : tuple of (str, str)
        Images that run, each with the one that the operator would take in its place.
    updates : bool
        Whether templates are made anew, though nothing of the spec has changed.
    maker : str
        This operator.
    failed : str
        The revision of decode that keeps a maintenance window from updating, as its images have failed in an earlier one.
    """

    found: Mapping[str, Sequence[Revision]]
    images: Images
    newer: tuple[tuple[str, str], ...]
    updates: bool
    maker: str
    failed: str = ""


def plan(cr: EldrDeployment, live: Snapshot, own: Images, now: datetime) -> Plan:
    """Decide which images pods are made with.

    Parameters
    ----------
    own : Images
        Of this operator.
    """
    found = {role: [*filter(None, map(_read, _objects(cr, live, role)))] for role in _WORKLOADS}
    for role, kept in found.items():
        if lost := _lost(cr, live, role, found, own):
            kept.append(lost)
    running = _running(cr, live, found, own)
    # decode would go back alone: the others would roll at each window's beginning, and back with its images at its end
    failed = _failed_in_window(cr, found[contract.ROLE_DECODE], own)
    updates = running is None or (_may_update(cr, now) and not failed)
    images = own if running is None or updates else running
    newer = tuple(
        (now, then) for now, then in zip(_used(cr, images), _used(cr, own), strict=True) if now != then
    )
    return Plan(found, images, newer, updates, f"{eldr.__version__} {own.own}", failed)


def choose(cr: EldrDeployment, role: str, made: Object, live: Snapshot, known: Plan) -> Revision:
    """Return the revision that the pods of a role are to have, one that is known or a new one.

    Parameters
    ----------
    made : dict
        The template as this operator makes it.
    """
    found, digest, generated = known.found[role], inputs(cr, role), meta.digest(made)
    adopted = None
    same = [revision for revision in found if revision.inputs == digest]
    for each in reversed(same):
        # what another release has made of the same spec stays, with the images that the other role has too
        is_kept = (
            not known.updates
            and each.maker != known.maker
            and _used(cr, each.images) == _used(cr, known.images)
        )
        if each.made == generated or is_kept:
            return each
    # a release without revisions made it, or what kept its revision is damaged
    workload = None if in_use(cr, live, role, found) or known.updates else live_workload(cr, live, role)
    if workload is not None and _was_made_from(cr, workload, digest):
        adopted = _plain(workload["spec"]["template"])
    name = _name(cr, role, digest, adopted or made, known.images)
    template = adopted or _labelled(made, name)
    return Revision(name, role, _next(found), digest, template, known.images, known.maker, generated)


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
    return live.ours(_WORKLOADS[role], meta.child_name(cr, role), cr.name, cr.metadata.uid)


def in_use(cr: EldrDeployment, live: Snapshot, role: str, found: Iterable[Revision]) -> Revision | None:
    """Return the one of some revisions that the workload of a role has; None if that is none of them."""
    workload = live_workload(cr, live, role)
    name = name_of(workload) if workload is not None else ""
    return next((each for each in found if each.name == name), None)


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
    return role if _WORKLOADS.get(role) == workload["kind"] else ""


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
    found = [one for role in _WORKLOADS for one in _objects(cr, live, role) if not owner_uids(one)]
    return [(_head(cr, one), one) for one in found]


def _head(cr: EldrDeployment, live: Object) -> Object:
    metadata = {name: live["metadata"][name] for name in ("name", "namespace", "labels")}
    return {"kind": KIND, "metadata": metadata | {"ownerReferences": [meta.owner_of(cr)]}}


def inputs(cr: EldrDeployment, role: str) -> str:
    """Return a digest of what of the spec decides about the pods of a role; fields at their defaults do not count.

    So a field that a later release adds changes no digest until somebody sets it.
    """
    spec = cr.spec
    found: Object = {"model": _set(spec.model, _MODEL_OF_ROUTERS), "served": cr.served_model}
    if role != contract.ROLE_ROUTER:
        found["model"] = _set(spec.model, _MODEL_OF_ROUTERS | _MODEL_OF_ENGINES)
        of_role = spec.prefill if role == contract.ROLE_PREFILL else spec.decode
        found |= {
            "engine": _set(spec.engine),
            "accelerator": _set(spec.accelerator),
            "role": _set(of_role),
        }
    if role == contract.ROLE_DECODE:
        found["sequences"] = sequences(cr)
    if role == contract.ROLE_ROUTER or (role == contract.ROLE_PREFILL and spec.router.placement == "Sidecar"):
        kept = {"placement", "image", "image_pull_policy", "args", "env", "resources", "drain_seconds"}
        kept |= {"api_keys_secret", "tls_secret", "admin_tls"}
        if role == contract.ROLE_ROUTER:
            kept |= {"pod_template"}
        found["router"] = _set(spec.router, kept)
        found["log"] = _set(spec.signatures, {"retention_mebibytes", "retention_hours"})
    return meta.digest(found)


def _set(part: CamelModel, fields: set[str] | None = None) -> Object:
    return part.model_dump(
        mode="json", include=fields, exclude={"replicas", "rollout"}, exclude_defaults=True
    )


def _used(cr: EldrDeployment, images: Images) -> Images:
    """Return the images that pods have, empty where the resource names another."""
    engine, router = cr.spec.engine, cr.spec.router
    own = engine.type == "vLLM" or not engine.image or not router.image
    return Images(
        images.own if own else "", images.vllm if engine.type == "vLLM" and not engine.image else ""
    )


def _may_update(cr: EldrDeployment, now: datetime) -> bool:
    if cr.spec.update != "Window":
        return cr.spec.update == "Immediate"
    window = cr.spec.refit.drift.maintenance_window
    return window is not None and maintenance.is_usable(window) and maintenance.opens_at(window, now) is None


def _failed_in_window(cr: EldrDeployment, found: Iterable[Revision], own: Images) -> str:
    """Return the revision of decode that has failed with the operator's images and the spec as it is; empty if none has."""
    if cr.spec.update != "Window":
        return ""
    digest = inputs(cr, contract.ROLE_DECODE)
    failed = (each for each in found if each.failed and each.inputs == digest)
    same = (each.name for each in failed if _used(cr, each.images) == _used(cr, own))
    return next(same, "")


def _running(
    cr: EldrDeployment, live: Snapshot, found: Mapping[str, Sequence[Revision]], own: Images
) -> Images | None:
    """Return the images that pods were made with; None where nothing runs yet."""
    ordered = (contract.ROLE_DECODE, contract.ROLE_PREFILL, contract.ROLE_ROUTER)
    for role in ordered:  # a workload may be gone for a moment, and the other role still tells
        if runs := in_use(cr, live, role, found[role]):
            return runs.images
    if workloads := [*filter(None, (live_workload(cr, live, role) for role in _WORKLOADS))]:
        return _images(cr, workloads, own)
    kept = next((found[role] for role in ordered if found[role]), ())
    worked = [each for each in kept if not each.failed] or kept
    last = max(worked, key=lambda each: (each.completed, each.number), default=None)
    return last.images if last else None


def _images(cr: EldrDeployment, workloads: Iterable[Mapping[str, Any]], other: Images) -> Images:
    """Return the images of workloads; others of which they do not tell."""
    seen: dict[str, str] = {}
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        for container in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ())):
            seen[container["name"]] = container["image"]
    simulator = seen.get(contract.CONTAINER_ENGINE) if cr.spec.engine.type == "Simulator" else None
    router = None if cr.spec.router.image else seen.get(contract.CONTAINER_ROUTER)
    mine = seen.get(PLUGIN_CONTAINER) or router or (None if cr.spec.engine.image else simulator)
    vllm = seen.get(contract.CONTAINER_ENGINE) if cr.spec.engine.type == "vLLM" else None
    return Images(mine or other.own, other.vllm if cr.spec.engine.image else vllm or other.vllm)


def _lost(
    cr: EldrDeployment, live: Snapshot, role: str, found: Mapping[str, Sequence[Revision]], own: Images
) -> Revision | None:
    """Return the revision that a workload has although nobody keeps it any more: somebody has deleted it."""
    workload = live_workload(cr, live, role)
    name = revision_of(workload["spec"]["template"]) if workload is not None else ""
    if workload is None or not name or name != name_of(workload) or name in live.of_kind(KIND):
        return None  # a name that its pods do not carry is not the operator's
    digest = workload["metadata"]["annotations"].get(ANNOTATION_INPUTS, "")
    images = _images(cr, [workload], _running(cr, live, found, own) or own)
    template = _plain(workload["spec"]["template"])
    return Revision(name, role, _next(found[role]), digest, template, images, "", "")


def _next(found: Sequence[Revision]) -> int:
    return found[-1].number + 1 if found else 1


def _was_made_from(cr: EldrDeployment, workload: Mapping[str, Any], digest: str) -> bool:
    """Tell whether a workload that no revision tells of has the template of the spec as it is now."""
    told = (workload["metadata"].get("annotations") or {}).get(ANNOTATION_INPUTS)
    if told is not None:
        return bool(told == digest)
    # made by a release without revisions; a restored object has no status, and its pods are what it asks for
    return bool(cr.status.get("observedGeneration", cr.metadata.generation) == cr.metadata.generation)


def _labelled(template: Object, name: str) -> Object:
    metadata = template["metadata"]
    return {
        **template,
        "metadata": {**metadata, "labels": {**metadata["labels"], contract.LABEL_REVISION: name}},
    }


def _plain(template: Mapping[str, Any]) -> Object:
    metadata = {name: value for name, value in template["metadata"].items() if value is not None}
    return {**template, "metadata": metadata}


def _objects(cr: EldrDeployment, live: Snapshot, role: str) -> list[Object]:
    found = [
        one
        for one in live.of_kind(KIND).values()
        if one["metadata"]["labels"].get(contract.LABEL_REVISION_OF) == role
        and is_ours(one, cr.name, cr.metadata.uid)
    ]
    return sorted(found, key=lambda one: (one["revision"], one["metadata"]["name"]))


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
        told = dict(data["template"]), images, str(data["maker"]), str(data["made"])
    except (KeyError, TypeError, ValueError):
        return None
    return Revision(metadata["name"], role, live["revision"], made_from, *told, *marks)


def _stamp(told: object) -> str:
    """Return a time stamp as it is written; empty for what is none."""
    at = clock.read(told)
    return "" if at is None else clock.stamp(at)


def _name(cr: EldrDeployment, role: str, digest: str, template: Object, images: Images) -> str:
    return meta.child_name(cr, f"{role}-{meta.digest([digest, template, images])[:10]}")
