"""A rollout that leaves a role without any engine for a while is announced before it begins. Pure.

The only prefill pod makes room for its successor where no node, or no quota, has room for both; the only decode pod always does, because its
successor has its name. Both wait for :data:`rollout.PATIENCE_SECONDS`, and the condition Progressing says when they end. Decode
engines that are scaled down to one in the middle of a rollout stay until that one has been replaced: then there is no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from eldr import contract
from eldr_operator import clock
from eldr_operator.conditions import NOT_REFUSED, Refusal, is_observed
from eldr_operator.models import PrefillRolloutSpec, RolloutSpec
from eldr_operator.workloads import rollout
from eldr_operator.workloads.revisions import name_of, revision_of

Object = dict[str, Any]

ANNOTATION_GAP = f"{contract.GROUP}/gap-at"
"""On a StatefulSet: when its only pod may be replaced."""


def kept_up(
    manifest: Object,
    live: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    now: datetime,
    refusal: Refusal = NOT_REFUSED,
) -> Object:
    """Return a StatefulSet that keeps its replicas until a rollout is over, where only one of them is to stay.

    The one that stays is replaced last. Were it alone by then, nobody would serve meanwhile.

    Parameters
    ----------
    manifest : dict
        With the revision that its pods are to have.
    pods : sequence
        Of the role: for one that finds no node the rollout waits for ever, and that of a smaller role does not.
    refusal : Refusal
        Why pods cannot be created, and since when in this rollout: for those it is the same.
    """
    spec = manifest["spec"]
    if live is None or spec["replicas"] != 1 or spec["updateStrategy"]["rollingUpdate"]["partition"]:
        return manifest
    status, existing = live.get("status") or {}, live["spec"].get("replicas", 1)
    is_over = (
        name_of(live) == name_of(manifest)
        and is_observed(live)
        and status.get("currentRevision") == status.get("updateRevision")
        and status.get("updatedReplicas", 0) == status.get("replicas", 0)
    )
    waits = rollout.waiting_in_vain(pods, now) or rollout.is_refused(refusal, now)
    if existing <= 1 or is_over or not status.get("readyReplicas") or waits:
        return manifest
    return manifest | {"spec": spec | {"replicas": existing}}


def announced(
    manifest: Object, live: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]], now: datetime
) -> Object:
    """Return a StatefulSet whose only pod, as long as it is ready, keeps its template until its end has been announced.

    Parameters
    ----------
    manifest : dict
        With the revision that its pods are to have.
    pods : sequence
        Of the role: one that has the revision already, as after a change that was undone, does not end.
    """
    if (
        live is None
        or manifest["spec"]["replicas"] != 1
        or not (live.get("status") or {}).get("readyReplicas")
        or (pods and all(revision_of(pod) == name_of(manifest) for pod in pods))
    ):
        return manifest
    # others of its role go at the same time, and nobody had to be told of a gap before
    is_new = name_of(live) not in {"", name_of(manifest)} or live["spec"].get("replicas", 1) > 1
    latest = now + timedelta(seconds=rollout.PATIENCE_SECONDS)
    at = latest if is_new else _gap_at(live)
    if at is None or at <= now:
        return manifest
    # a clock that was ahead may have told a later time
    annotations = manifest["metadata"]["annotations"] | {ANNOTATION_GAP: clock.stamp(min(at, latest))}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    return manifest | {
        "metadata": manifest["metadata"] | {"annotations": annotations},
        "spec": manifest["spec"] | {"updateStrategy": strategy},
    }


def begins_at(
    spec: RolloutSpec,
    live: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    now: datetime,
    refusal: Refusal = NOT_REFUSED,
) -> datetime | None:
    """Return when the only pod of a role will end before its successor starts; None if it will not, or has ended.

    Parameters
    ----------
    refusal : Refusal
        Why pods cannot be created, and since when in this rollout.
    """
    if live is None or (live.get("spec") or {}).get("replicas", 1) != 1:
        return None
    gap = _gap_at(live)
    moments = [gap] if gap else []
    if isinstance(spec, PrefillRolloutSpec) and spec.max_surge == "Auto" and not rollout.has_gaps(live):
        moments += rollout.makes_room_at(live, pods, refusal)
    return min((moment for moment in moments if moment > now), default=None)


def _gap_at(live: Mapping[str, Any]) -> datetime | None:
    return clock.read((live["metadata"].get("annotations") or {}).get(ANNOTATION_GAP))
