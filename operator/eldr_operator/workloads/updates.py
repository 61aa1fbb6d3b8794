"""Which templates and images the pods of a deployment are made with: those that run, or this operator's own. Pure.

Another release of the operator makes other templates from the same spec. Pods must not restart for that, so a template stays until what
it was made from changes, or ``spec.update`` says so. Under the build that made it, any other template is a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import meta
from eldr_operator.drift import maintenance
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads import revisions
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.revisions import (
    ANNOTATION_INPUTS,
    KIND,
    WORKLOADS,
    Revision,
    in_use,
    inputs,
    live_workload,
    name_of,
    revision_of,
)
from eldr_operator.workloads.vllm import PLUGIN_CONTAINER

Object = dict[str, Any]


class Plan(NamedTuple):
    """What is known of a deployment's revisions, and which images its pods are made with.

    Attributes
    ----------
    revisions : mapping
        Role to its revisions, the oldest first.
    images : Images
        Of the operator where it may update, else those that run.
    newer : tuple of (str, str)
        Images that run, each with the one that the operator would take in its place.
    updates : bool
        Whether templates are made anew, though nothing of the spec has changed.
    maker : str
        This build of the operator.
    failed : str
        The revision of decode that keeps a maintenance window from updating, as its images have failed in an earlier one.
    kept_back : tuple of str
        Roles whose templates another build has made, and this one would make differently.
    """

    revisions: Mapping[str, Sequence[Revision]]
    images: Images
    newer: tuple[tuple[str, str], ...]
    updates: bool
    maker: str
    failed: str = ""
    kept_back: tuple[str, ...] = ()


def plan(cr: EldrDeployment, live: Snapshot, own: Images, now: datetime, *, maker: str) -> Plan:
    """Decide which images pods are made with.

    Parameters
    ----------
    own : Images
        Of this operator.
    maker : str
        Identity of its build.
    """
    by_role = {role: revisions.kept(cr, live, role) for role in WORKLOADS}
    for role, kept in by_role.items():
        if lost := _lost(cr, live, role, by_role, own):
            kept.append(lost)
    running = _running(cr, live, by_role, own)
    # decode would go back alone: the others would roll at each window's beginning, and back with its images at its end
    failed = _failed_in_window(cr, by_role[contract.ROLE_DECODE], own)
    updates = running is None or (_may_update(cr, now) and not failed)
    images = own if running is None or updates else running
    newer = tuple(
        (now, then) for now, then in zip(_used(cr, images), _used(cr, own), strict=True) if now != then
    )
    return Plan(by_role, images, newer, updates, maker, failed)


def choose(cr: EldrDeployment, role: str, made: Object, live: Snapshot, known: Plan) -> Revision:
    """Return the revision that the pods of a role are to have, one that is known or a new one.

    Parameters
    ----------
    made : dict
        The template as this operator makes it.
    """
    existing, digest, generated = known.revisions[role], inputs(cr, role), meta.digest(made)
    adopted = None
    same = [revision for revision in existing if revision.inputs == digest]
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
    workload = None if in_use(cr, live, role, existing) or known.updates else live_workload(cr, live, role)
    if workload is not None and _was_made_from(cr, workload, digest):
        adopted = _plain(workload["spec"]["template"])
    name = _name(cr, role, digest, adopted or made, known.images)
    template = adopted or _labelled(made, name)
    return Revision(name, role, _next(existing), digest, template, known.images, known.maker, generated)


def is_kept_back(chosen: Revision, made: Object, maker: str) -> bool:
    """Tell whether pods keep a template that this build would make differently; of one that was adopted that is not known."""
    return bool(chosen.made) and chosen.maker != maker and chosen.made != meta.digest(made)


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


def _failed_in_window(cr: EldrDeployment, existing: Iterable[Revision], own: Images) -> str:
    """Return the revision of decode that has failed with the operator's images and the spec as it is; empty if none has."""
    if cr.spec.update != "Window":
        return ""
    digest = inputs(cr, contract.ROLE_DECODE)
    failed = (each for each in existing if each.failed and each.inputs == digest)
    same = (each.name for each in failed if _used(cr, each.images) == _used(cr, own))
    return next(same, "")


def _running(
    cr: EldrDeployment, live: Snapshot, by_role: Mapping[str, Sequence[Revision]], own: Images
) -> Images | None:
    """Return the images that pods were made with; None where nothing runs yet."""
    ordered = (contract.ROLE_DECODE, contract.ROLE_PREFILL, contract.ROLE_ROUTER)
    for role in ordered:  # a workload may be gone for a moment, and the other role still tells
        if runs := in_use(cr, live, role, by_role[role]):
            return runs.images
    if workloads := [*filter(None, (live_workload(cr, live, role) for role in WORKLOADS))]:
        return _images(cr, workloads, own)
    kept = next((by_role[role] for role in ordered if by_role[role]), ())
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
    cr: EldrDeployment, live: Snapshot, role: str, by_role: Mapping[str, Sequence[Revision]], own: Images
) -> Revision | None:
    """Return the revision that a workload has although nobody keeps it any more: somebody has deleted it."""
    workload = live_workload(cr, live, role)
    name = revision_of(workload["spec"]["template"]) if workload is not None else ""
    if workload is None or not name or name != name_of(workload) or name in live.of_kind(KIND):
        return None  # a name that its pods do not carry is not the operator's
    digest = workload["metadata"]["annotations"].get(ANNOTATION_INPUTS, "")
    images = _images(cr, [workload], _running(cr, live, by_role, own) or own)
    template = _plain(workload["spec"]["template"])
    return Revision(name, role, _next(by_role[role]), digest, template, images, "", "")


def _next(existing: Sequence[Revision]) -> int:
    return existing[-1].number + 1 if existing else 1


def _was_made_from(cr: EldrDeployment, workload: Mapping[str, Any], digest: str) -> bool:
    """Tell whether a workload that no revision tells of has the template of the spec as it is now."""
    annotation = (workload["metadata"].get("annotations") or {}).get(ANNOTATION_INPUTS)
    if annotation is not None:
        return bool(annotation == digest)
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


def _name(cr: EldrDeployment, role: str, digest: str, template: Object, images: Images) -> str:
    return meta.child_name(cr, f"{role}-{meta.digest([digest, template, images])[:10]}")
