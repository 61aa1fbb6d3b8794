"""Writes the children of an EldrDeployment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import backoff, meta
from eldr_operator.conditions import NOT_REFUSED, Refusal
from eldr_operator.errors import ApiError
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.unwritten import REFUSED, UNAVAILABLE, Unwritten, Writes
from eldr_operator.workloads import (
    desired,
    downloads,
    gaps,
    rbac,
    revisions,
    roles,
    rollback,
    rollout,
    scaling,
    updates,
)
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from eldr_operator.workloads.rollback import Choice
from eldr_operator.workloads.secret import AdminSecrets

Object = dict[str, Any]


class Applied(NamedTuple):
    """What became of the children.

    Attributes
    ----------
    unwritten : list of Unwritten
        Those that could not be brought to their desired state.
    revisions : mapping
        Role to what its pods are made from.
    plan : Plan
        Of revisions.
    """

    unwritten: list[Unwritten]
    revisions: Mapping[str, Choice]
    plan: updates.Plan


class Children:
    """Writes children.

    Parameters
    ----------
    images : Images
        Of this operator, where the resource names none.
    secrets : AdminSecrets
        Creates the Secret of the routers' admin ports.
    outside : Outside
        Who reaches pods beside clients.
    maker : str
        Identity of this build of the operator.
    """

    def __init__(
        self,
        applier: Applier,
        images: Images,
        secrets: AdminSecrets,
        outside: Outside,
        *,
        maker: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._maker = maker
        self._applier = applier
        self._images = images
        self._outside = outside
        self._secrets = secrets
        self._slow: dict[str, frozenset[tuple[str, str]]] = {}
        self._refusals = backoff.Backoff(monotonic, backoff.REFUSED)

    def forget(self, owner: tuple[str, str]) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._refusals.forget(owner)

    async def apply(
        self,
        cr: EldrDeployment,
        live: Snapshot,
        *,
        shards: Collection[str],
        broken: Collection[str],
        unreadable: Mapping[str, str],
        now: datetime,
        waits: bool,
        has_fits: bool,
        refused: Mapping[str, Refusal],
    ) -> Applied:
        """Bring all children to their desired state.

        A child that the API server refuses, or fails at, does not keep the others from being written. One at which it
        has failed comes last in the next pass, so that it takes no time of the others.

        Parameters
        ----------
        shards : collection of str
            ConfigMaps of the centroid sets that routers may be asked to load.
        broken : collection of str
            Roles whose pods stay as they are, because a field that they are made from cannot be used.
        unreadable : mapping
            Kinds that cannot be listed, and why: their children stay as they are.
        waits : bool
            Whether the model is not there yet: engines keep the revision that they have until then, or are not made.
        has_fits : bool
            Whether there are EldrFits.
        refused : mapping
            Role to why its pods cannot be created, and since when in this rollout.
        """
        own = self._images.for_accelerator(cr.spec.accelerator.resource_name)
        plan = updates.plan(cr, live, own, now, maker=self._maker)
        usable = _without_pod_templates(cr, broken)
        children = desired.children(usable, shards, plan.images, self._outside)
        wanted = [
            *scaling.manifests(cr, live),
            *(child for child in children if has_fits or not rbac.is_of_fits(child)),
        ]
        runs = {role: rollback.stays(cr, live, role, existing) for role, existing in plan.revisions.items()}
        # what cannot be used leaves pods as they are; how many there are still follows the spec, or an autoscaler
        asked = {
            role: runs[role]
            if role in broken
            else updates.choose(cr, role, each["spec"]["template"], live, plan)
            for each in wanted
            if (role := revisions.role_of(each))
        }
        kept_back = tuple(
            role
            for each in wanted
            if (role := revisions.role_of(each))
            and (one := asked[role])
            and updates.is_kept_back(one, each["spec"]["template"], plan.maker)
        )
        plan = plan._replace(kept_back=kept_back)
        if waits:
            asked |= {role: runs[role] for role in roles.ENGINES}
        untouched = {meta.child_name(cr, role) for role, each in asked.items() if each is None}
        known = {role: each for role, each in asked.items() if each is not None}
        chosen = rollback.settle(cr, known, live, plan, now, refused=refused)
        # only now: what the spec asks for decides which failures are forgotten
        if roles.needs_sidecars(cr, live.pods):
            _hold_prefill(cr, chosen, runs[contract.ROLE_PREFILL])
        slow = self._slow.pop(cr.metadata.uid, frozenset())
        wanted.sort(key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"]) in slow)
        writes = Writes((cr.namespace, cr.name), self._refusals, asyncio.get_running_loop().time)
        left: dict[tuple[str, str], Unwritten] = {}
        for manifest in wanted:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            if kind in {"Deployment", "StatefulSet"} and name in untouched:
                continue
            if kind in unreadable:
                text = f"each {kind} stays as it is: {unreadable[kind]}"
                left[kind, ""] = Unwritten(kind, "", REFUSED, text)
                continue
            steps, instead = [manifest], None
            if role := revisions.role_of(manifest):
                choice = chosen[role]
                if choice.revision is None:
                    left[revisions.KIND, role] = rollback.unknown(cr, role, choice)
                    choice = chosen[role] = choice._replace(revision=runs[role])
                if choice.revision is None:
                    continue
                if role == contract.ROLE_PREFILL:
                    manifest["spec"] |= self._strategy(cr, manifest, live, now, refused)
                # kept first: the next release would make a template anew that runs and is not kept
                kept = {each.name: each for each in (choice.revision, *choice.stale)}
                steps = [revisions.manifest(cr, each) for each in kept.values()]
                steps.append(_made(cr, manifest, choice.revision, live, now, refused=refused))
                if (now_has := runs[role]) and now_has.name != choice.revision.name:
                    # where the other is refused, pods stay as they are here, too, and their number follows the spec
                    instead = _made(cr, manifest, now_has, live, now, refused=refused)
            for step in steps:
                if fault := await self._write(writes, cr, step, live):
                    left[fault.kind, fault.name] = fault
                    if fault.reason == REFUSED and instead:
                        await self._write(writes, cr, instead, live)
                    break
        # after the service account of its pod
        job = downloads.job(usable, plan.images)
        left |= {(each.kind, each.name): each for each in await self._download(writes, cr, job, live)}
        for head, unowned in revisions.unowned(cr, live):
            name = head["metadata"]["name"]
            if fault := await writes.tried(revisions.KIND, name, self._applier.take_back(head, unowned)):
                left[revisions.KIND, name] = fault
        used = {role: choice.kept for role, choice in chosen.items()}
        for kind, surplus in (*live.surplus(wanted, cr.metadata.uid), *revisions.surplus(cr, live, used)):
            name = surplus["metadata"]["name"]
            if (kind, name) == ("Deployment", meta.child_name(cr, contract.ROLE_ROUTER)) and not (
                roles.has_sidecars(cr, live.pods)
            ):
                continue  # clients need it until routers are ready beside the prefill engines
            if fault := await writes.tried(kind, name, self._applier.delete(kind, surplus), "delete"):
                left[kind, name] = fault
        for scaler, status in scaling.statuses(cr, live):
            if fault := await self._patch_scaler(writes, scaler, status):
                left[fault.kind, fault.name] = fault
        if fault := await self._secrets.ensure(writes, cr, live, now):
            left[fault.kind, fault.name] = fault
        if failed := frozenset(key for key, fault in left.items() if fault.reason == UNAVAILABLE):
            self._slow[cr.metadata.uid] = failed
        return Applied([*left.values()], {**_untouched(cr, live, plan), **_known(chosen)}, plan)

    async def _download(
        self, writes: Writes, cr: EldrDeployment, job: Object | None, live: Snapshot
    ) -> list[Unwritten]:
        """Start the Job that downloads the model, where there is none, and delete those that are of no use."""
        asked: list[tuple[Object, Coroutine[Any, Any, object]]] = [
            (each, self._applier.delete("Job", each)) for each in downloads.surplus(cr, job, live)
        ]
        if job is not None and downloads.is_missing(cr, job, live):
            asked.append((job, self._created(job)))
        faults = [await writes.tried("Job", each["metadata"]["name"], write) for each, write in asked]
        return [*filter(None, faults)]

    async def _created(self, manifest: Object) -> bool:
        """Create an object; False where there is one of that name, which the next pass sees."""
        try:
            await self._applier.create(manifest)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return False
        return True

    def _strategy(
        self,
        cr: EldrDeployment,
        manifest: Object,
        live: Snapshot,
        now: datetime,
        refused: Mapping[str, Refusal],
    ) -> Object:
        role = contract.ROLE_PREFILL
        deployment = live.owned(manifest["kind"], manifest["metadata"]["name"], cr.metadata.uid)
        pods, refusal = roles.of_role(live.pods, role), refused.get(role, NOT_REFUSED)
        return rollout.of_deployment(cr.spec.prefill.rollout, deployment, pods, now, refusal)

    async def _write(
        self, writes: Writes, cr: EldrDeployment, manifest: Object, live: Snapshot
    ) -> Unwritten | None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        owned = live.owned(kind, name, cr.metadata.uid)
        # whose its replicas are may have changed since it was read
        is_memory = kind == contract.KIND_SCALER
        manager = scaling.deleted(cr, live).get(name, "") if is_memory else ""
        write = self._applier.apply(
            (cr.namespace, cr.name), manifest, owned, is_memory=is_memory, manager=manager
        )
        return await writes.tried(kind, name, write, meta.fingerprint(manifest))

    async def _patch_scaler(self, writes: Writes, scaler: Object, status: Object) -> Unwritten | None:
        kind, metadata = scaler["kind"], scaler["metadata"]
        name = metadata["name"]
        write = self._applier.patch_status(kind, metadata["namespace"], name, metadata["uid"], status)
        return await writes.tried(kind, name, write)


def _hold_prefill(cr: EldrDeployment, chosen: dict[str, Choice], runs: revisions.Revision | None) -> None:
    """Keep prefill engines as they run, unless a roll-back or ``rollout.revision`` wants others."""
    choice = chosen.get(contract.ROLE_PREFILL)
    if choice and runs and not choice.failed and not cr.spec.prefill.rollout.revision:
        chosen[contract.ROLE_PREFILL] = choice._replace(revision=runs)


def _made(
    cr: EldrDeployment,
    manifest: Object,
    revision: revisions.Revision,
    live: Snapshot,
    now: datetime,
    *,
    refused: Mapping[str, Refusal],
) -> Object:
    """Return a workload with the template of a revision; the only decode engine ends when that was announced."""
    owned = live.owned(manifest["kind"], manifest["metadata"]["name"], cr.metadata.uid)
    made = revisions.frozen(manifest, revision, owned, now)
    if revision.role != contract.ROLE_DECODE:
        return made
    decode = roles.of_role(live.pods, contract.ROLE_DECODE)
    refusal = refused.get(contract.ROLE_DECODE, NOT_REFUSED)
    return gaps.announced(gaps.kept_up(made, owned, decode, now, refusal), owned, decode, now)


def _known(chosen: Mapping[str, Choice]) -> dict[str, Choice]:
    return {role: choice for role, choice in chosen.items() if choice.revision is not None}


def _untouched(cr: EldrDeployment, live: Snapshot, plan: updates.Plan) -> dict[str, Choice]:
    """Return what the pods of each role have now; it stays where what the spec asks for cannot be had."""
    running = {role: revisions.in_use(cr, live, role, existing) for role, existing in plan.revisions.items()}
    return _known({role: Choice(revision, {}) for role, revision in running.items()})


def _without_pod_templates(cr: EldrDeployment, roles: Collection[str]) -> EldrDeployment:
    patched = {
        contract.ROLE_PREFILL: cr.spec.prefill,
        contract.ROLE_DECODE: cr.spec.decode,
        contract.ROLE_ROUTER: cr.spec.router,
    }
    plain = {
        role: spec.model_copy(update={"pod_template": {}}) for role, spec in patched.items() if role in roles
    }
    return cr.model_copy(update={"spec": cr.spec.model_copy(update=plain)})
