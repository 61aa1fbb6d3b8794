"""What the API server holds for us, as watches and lists told it last: a pass reads here, not over the network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from eldr import contract

Object = dict[str, Any]

_OURS = f"{contract.LABEL_MANAGED_BY}={contract.FIELD_MANAGER}"
WATCHED: Mapping[str, str] = {
    contract.KIND_DEPLOYMENT: "",
    contract.KIND_FIT: "",
    contract.KIND_SCALER: _OURS,
    "ConfigMap": _OURS,
    "ControllerRevision": _OURS,
    "Deployment": _OURS,
    "Job": _OURS,
    "NetworkPolicy": _OURS,
    "Pod": contract.LABEL_DEPLOYMENT,
    "PodDisruptionBudget": _OURS,
    "Role": _OURS,
    "RoleBinding": _OURS,
    "Service": _OURS,
    "ServiceAccount": _OURS,
    "StatefulSet": _OURS,
}
"""Kinds that are watched, and the label selector of those that matter."""
_CONTAINERS = ("containers", "initContainers")
_OF_POD = ("nodeName", *_CONTAINERS)
_OF_CONTAINER = ("name", "ports", "resources")


class Cache:
    """Objects of the kinds in :data:`WATCHED`, by namespace and name.

    Watches bring changes; a list now and then brings what a watch may have missed. What the operator itself has written
    is put here at once, so that a pass never decides by what it has just changed. Of two versions of an object the later
    stays, whoever comes last: resource versions of one kind can be compared (Kubernetes, KEP-5504).

    Most of what nobody looks at is left out, see :func:`lean`.
    """

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, dict[str, Object]]] = {kind: {} for kind in WATCHED}
        self._by_deployment: dict[tuple[str, str, str], dict[str, Object]] = {}
        self._gone: dict[tuple[str, str], dict[str, int]] = {}

    def __repr__(self) -> str:
        return f"<Cache objects={sum(1 for kind in WATCHED for _ in self._every(kind))}>"

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None where there is none."""
        return self._objects[kind].get(namespace, {}).get(name)

    def of(self, kind: str, namespace: str) -> list[Object]:
        """Return the objects of a kind in a namespace, by name."""
        found = self._objects[kind].get(namespace, {})
        return [found[name] for name in sorted(found)]

    def of_deployment(self, kind: str, namespace: str, deployment: str) -> list[Object]:
        """Return the objects of a kind that carry the label of a deployment, by name."""
        found = self._by_deployment.get((kind, namespace, deployment), {})
        return [found[name] for name in sorted(found)]

    def every(self, kind: str) -> list[Object]:
        """Return the objects of a kind in all namespaces."""
        return list(self._every(kind))

    def put(self, kind: str, live: Object) -> None:
        """Take an object as it is now, unless a later version is known, or that it is gone."""
        metadata = live["metadata"]
        gone = self._gone.get((kind, metadata["namespace"]), {})
        if kind not in WATCHED or _version(live) <= gone.get(metadata["uid"], 0):
            return
        of_namespace = self._objects[kind].setdefault(metadata["namespace"], {})
        known = of_namespace.get(metadata["name"])
        if known is None or known["metadata"]["uid"] != metadata["uid"] or _version(known) < _version(live):
            self._drop(kind, known)
            live = of_namespace[metadata["name"]] = lean(kind, live)
            if (key := _index(kind, live)) is not None:
                self._by_deployment.setdefault(key, {})[metadata["name"]] = live

    def remove(self, kind: str, live: Object) -> None:
        """Forget an object that is gone, or that does not carry our labels any more."""
        metadata = live["metadata"]
        self._gone.setdefault((kind, metadata["namespace"]), {})[metadata["uid"]] = _version(live)
        of_namespace = self._objects[kind].get(metadata["namespace"], {})
        known = of_namespace.get(metadata["name"])
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            self._drop(kind, known)

    def begin_list(self, kind: str, namespace: str | None) -> None:
        """Forget what is gone: each is a version before that of a list which begins now."""
        for key in [key for key in self._gone if key[0] == kind and namespace in {None, key[1]}]:
            del self._gone[key]

    def replace(
        self, kind: str, namespace: str | None, listed: Collection[Object], version: int | None
    ) -> None:
        """Take a list: what is missing in it and not later than it is gone.

        Parameters
        ----------
        namespace : str or None
            What was listed; None for all.
        version : int or None
            Of the list; None if nothing can be later.
        """
        uids = {live["metadata"]["uid"] for live in listed}
        for known in [*self._every(kind)]:
            metadata = known["metadata"]
            if namespace not in {None, metadata["namespace"]} or metadata["uid"] in uids:
                continue
            if version is None or _version(known) <= version:
                self._drop(kind, known)
        for live in listed:
            self.put(kind, live)

    def _drop(self, kind: str, known: Object | None) -> None:
        if known is None:
            return
        metadata = known["metadata"]
        del self._objects[kind][metadata["namespace"]][metadata["name"]]
        if (key := _index(kind, known)) is not None:
            del self._by_deployment[key][metadata["name"]]
            if not self._by_deployment[key]:
                del self._by_deployment[key]

    def _every(self, kind: str) -> Iterator[Object]:
        # copies: metrics are collected in a thread of their own, while watches bring changes
        for of_namespace in list(self._objects[kind].values()):
            yield from list(of_namespace.values())


def lean(kind: str, live: Object) -> Object:
    """Return an object without most of what nobody looks at: what is kept of them is the operator's memory.

    Managed fields are those that others may have a say in: none of pods and EldrDeployments, and of subresources only those
    of EldrScalers. Of a pod's spec its node stays, and of containers what they ask for. Revisions of StatefulSets, which
    carry our labels but are not ours, lose their copy of the template.
    """
    metadata = live["metadata"]
    if kind != contract.KIND_SCALER and "managedFields" in metadata:
        kept = {name: value for name, value in metadata.items() if name != "managedFields"}
        if kind not in {"Pod", contract.KIND_DEPLOYMENT}:
            managed = metadata["managedFields"] or ()
            kept["managedFields"] = [entry for entry in managed if not entry.get("subresource")]
        live = {**live, "metadata": kept}
    if kind == "Pod" and "spec" in live:
        spec = {name: live["spec"][name] for name in _OF_POD if name in live["spec"]}
        for field in _CONTAINERS:
            if field in spec:
                spec[field] = [
                    {name: one[name] for name in _OF_CONTAINER if name in one} for one in spec[field]
                ]
        return {**live, "spec": spec}
    owners = metadata.get("ownerReferences") or ()
    if kind == "ControllerRevision" and any(owner["kind"] == "StatefulSet" for owner in owners):
        return {name: value for name, value in live.items() if name != "data"}
    return live


def _version(live: Mapping[str, Any]) -> int:
    return int(live["metadata"]["resourceVersion"])


def _index(kind: str, live: Mapping[str, Any]) -> tuple[str, str, str] | None:
    deployment = deployment_of(live)
    return None if deployment is None else (kind, live["metadata"]["namespace"], deployment)


def deployment_of(live: Mapping[str, Any]) -> str | None:
    """Return the deployment that an object names in its label."""
    return (live["metadata"].get("labels") or {}).get(contract.LABEL_DEPLOYMENT)
