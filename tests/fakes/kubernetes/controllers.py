"""What kube-controller-manager does with workloads: pods of Deployments, StatefulSets and Jobs, one step each time; and what nobody owns goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from eldr import contract
from eldr_operator import clock
from eldr_operator.conditions import condition_of
from eldr_operator.meta import digest, owner_reference
from tests.fakes.kubernetes.store import Object, Store, matches
from tests.support.kube import Refused

_MANAGER = "kube-controller-manager"


class Controllers:
    """Brings what runs closer to what objects ask for.

    Attributes
    ----------
    quota : set of str
        Namespaces in which no pod may be created.
    refuses : callable
        Tells which templates no pod may be created from.
    refusal : str
        What is told of such pods.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.quota: set[str] = set()
        self.refuses: Callable[[Object], bool] = lambda _: False
        self.refusal = "exceeded quota: none"

    def step(self) -> None:
        """Do what is due."""
        self._collect()
        for live in self._store.list("Deployment", None):
            self._deployment(live)
        for live in self._store.list("StatefulSet", None):
            self._stateful_set(live)
        for live in self._store.list("Job", None):
            self._job(live)

    def _collect(self) -> None:
        uids = self._store.uids()
        for live in self._store.everything():
            owners = live["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners):
                self._delete(live)

    def _deployment(self, live: Object) -> None:
        spec = live["spec"]
        wanted, revision = spec.get("replicas", 1), digest(spec["template"])
        rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {"maxSurge": 1, "maxUnavailable": 0}
        pods = self._pods(live)
        new = [pod for pod in pods if _revision(pod) == revision]
        old = [pod for pod in pods if pod not in new]
        made = []
        if spec.get("paused"):
            while len(pods) < wanted and old and self._create(live, old[0], _revision(old[0])):
                pods = self._pods(live)
            new = old = []
        else:
            room = wanted + rolling["maxSurge"] - len(pods)
            made = [
                self._create(live, spec["template"], revision) for _ in range(min(room, wanted - len(new)))
            ]
            for pod in sorted(new, key=_age)[wanted:]:
                self._delete(pod)
            pods = self._pods(live)
            for pod in sorted(old, key=_is_ready):
                available = sum(self._is_available(live, each) for each in pods)
                spare = available - (wanted - rolling["maxUnavailable"])
                if not _is_ready(pod) or spare > 0:
                    self._delete(pod)
                    pods = self._pods(live)
        self._tell(live, self._pods(live), revision, is_refused=not all(made))

    def _stateful_set(self, live: Object) -> None:
        spec = live["spec"]
        wanted, revision = spec.get("replicas", 1), digest(spec["template"])
        partition = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition", 0)
        pods = {pod["metadata"]["name"]: pod for pod in self._pods(live)}
        base = live["metadata"]["name"]
        current = (live.get("status") or {}).get("currentRevision", revision)
        kept = {_revision(pod): pod for pod in pods.values()}
        for ordinal in range(wanted):
            if (name := f"{base}-{ordinal}") not in pods:
                is_old = ordinal < partition and current in kept
                of = current if is_old else revision
                like = kept[of] if is_old else spec["template"]
                self._create(live, like, of, name=name, index=ordinal)
        for name, pod in pods.items():
            if int(name.rpartition("-")[2]) >= wanted:
                self._delete(pod)
        pods = {pod["metadata"]["name"]: pod for pod in self._pods(live)}
        # one at a time from the highest ordinal, each available before the next; what keeps its template holds nobody up
        for ordinal in range(wanted - 1, partition - 1, -1):
            pod = pods.get(f"{base}-{ordinal}")
            if pod is None:
                break
            if _revision(pod) != revision:
                self._delete(pod)
                break
            if not self._is_available(live, pod):
                break
        self._tell(live, self._pods(live), revision)

    def _job(self, live: Object) -> None:
        status = live.get("status") or {}
        if status.get("conditions"):
            return
        selector = f"batch.kubernetes.io/job-name={live['metadata']['name']}"
        pods = [pod for pod in self._pods(live) if matches(pod, selector)]
        if not pods:
            self._create(live, live["spec"]["template"], "", labels=selector)
            return
        phase = (pods[0].get("status") or {}).get("phase")
        ended = {"Succeeded": "Complete", "Failed": "Failed"}.get(str(phase))
        told: Object = {"active": 1} if ended is None else {"conditions": [{"type": ended, "status": "True"}]}
        if told != status:
            self._write(live, told)

    def _pods(self, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        listed = self._store.list("Pod", owner["metadata"]["namespace"])
        return [pod for pod in listed if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _create(
        self,
        owner: Object,
        like: Object,
        revision: str,
        *,
        name: str = "",
        index: int | None = None,
        labels: str = "",
    ) -> bool:
        """Create a pod like a template, or like another pod."""
        metadata = owner["metadata"]
        namespace = metadata["namespace"]
        if namespace in self.quota or self.refuses(like):
            self._refused(owner)
            return False
        made = dict(like["metadata"].get("labels") or {})
        made |= {"controller-revision-hash": revision} if revision else {}
        made |= dict(part.split("=") for part in [labels] if part)
        if index is not None:
            made[contract.LABEL_STATEFULSET_INDEX] = str(index)
        reference = owner_reference(owner["apiVersion"], owner["kind"], metadata["name"], metadata["uid"])
        head: Object = {
            "namespace": namespace,
            "labels": made,
            "ownerReferences": [reference],
        }
        head |= {"name": name} if name else {"generateName": f"{metadata['name']}-"}
        self._store.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": head,
                "spec": {**like["spec"], "nodeName": "n"},
                "status": {},
            },
            _MANAGER,
        )
        return True

    def _refused(self, owner: Object) -> None:
        metadata = owner["metadata"]
        about = {"kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        head = {"namespace": metadata["namespace"], "name": f"{metadata['name']}.refused"}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": head, "involvedObject": about}
        if self._store.find("Event", head["namespace"], head["name"]) is None:
            told = {"reason": "FailedCreate", "message": self.refusal}
            self._store.create({**event, **told, "firstTimestamp": self._store.stamp()}, _MANAGER)

    def _tell(self, live: Object, pods: list[Object], revision: str, *, is_refused: bool = False) -> None:
        updated = sum(_revision(pod) == revision for pod in pods)
        before = live.get("status") or {}
        told: Object = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": updated,
            "readyReplicas": sum(map(_is_ready, pods)),
            "availableReplicas": sum(self._is_available(live, pod) for pod in pods),
        }
        if is_refused:
            failure = {"type": "ReplicaFailure", "status": "True", "message": self.refusal}
            since = condition_of(live, "ReplicaFailure").get("lastTransitionTime") or self._store.stamp()
            told["conditions"] = [failure | {"lastTransitionTime": since}]
        if live["kind"] == "StatefulSet":
            is_over = updated == len(pods) == live["spec"].get("replicas", 1)
            current = revision if is_over else before.get("currentRevision", revision)
            told |= {"updateRevision": revision, "currentRevision": current}
        if told != before:
            self._write(live, told)

    def _is_available(self, live: Object, pod: Object) -> bool:
        seconds, since = (
            live["spec"].get("minReadySeconds", 0),
            condition_of(pod, "Ready").get("lastTransitionTime"),
        )
        if not _is_ready(pod) or not seconds:
            return _is_ready(pod)
        now, ready_at = clock.read(self._store.stamp()), clock.read(since)
        return bool(now and ready_at and (now - ready_at).total_seconds() >= seconds)

    def _write(self, live: Object, status: Object) -> None:
        self._store.replace({**live, "status": status}, _MANAGER, "status")

    def _delete(self, live: Object) -> None:
        metadata = live["metadata"]
        with contextlib.suppress(Refused):  # gone with another
            self._store.delete((live["kind"], metadata["namespace"], metadata["name"]))


def _revision(pod: Object) -> str:
    return str(pod["metadata"]["labels"].get("controller-revision-hash", ""))


def _is_ready(pod: Object) -> bool:
    return condition_of(pod, "Ready").get("status") == "True"


def _age(pod: Object) -> tuple[bool, int]:
    return not _is_ready(pod), int(pod["metadata"]["uid"].rpartition("-")[2])
