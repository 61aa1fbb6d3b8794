"""What the API server holds for us, as watches and lists told it last: a pass reads here, not over the network."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

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
_PARSED = 1000
"""Objects that are kept parsed as well: those of some forty deployments."""
_MOST_LEVELS = 240
"""Of lists and objects in one another that are kept: pydantic and orjson take some more. Only a ``podTemplate`` or a variable can have more
(:mod:`eldr_operator.validation.depth`)."""
_CONTAINERS = ("containers", "initContainers")
_OF_POD = ("nodeName", *_CONTAINERS)
_OF_CONTAINER = ("name", "ports", "resources")


class _Kept(NamedTuple):
    """An object as text, which takes a sixth of the memory, and what the cache itself asks of it."""

    uid: str
    version: int
    deployment: str | None
    text: bytes


class Cache:
    """Objects of the kinds in :data:`WATCHED`, by namespace and name. What it returns is not to be changed.

    Watches bring changes; a list now and then brings what a watch may have missed. What the operator itself has written
    is put here at once, so that a pass never decides by what it has just changed. Of two versions of an object the later
    stays, whoever comes last: resource versions of one kind can be compared (Kubernetes, KEP-5504).

    Most of what nobody looks at is left out, see :func:`lean`.
    """

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, dict[str, _Kept]]] = {kind: {} for kind in WATCHED}
        self._by_deployment: dict[tuple[str, str, str], set[str]] = {}
        self._gone: dict[tuple[str, str], dict[str, int]] = {}
        # a pass reads the same objects as the one before it
        self._parsed = lru_cache(_PARSED)(_parsed)

    def __repr__(self) -> str:
        return f"<Cache objects={sum(1 for kind in WATCHED for _ in self._every(kind))}>"

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None where there is none."""
        kept = self._objects[kind].get(namespace, {}).get(name)
        return None if kept is None else self._read(kept)

    def holds(self, kind: str, live: Object) -> bool:
        """Tell whether this very version of an object is known."""
        metadata = live["metadata"]
        kept = self._objects[kind].get(metadata["namespace"], {}).get(metadata["name"])
        return kept is not None and kept.version == _version(live)

    def of(self, kind: str, namespace: str) -> list[Object]:
        """Return the objects of a kind in a namespace, by name."""
        objects = self._objects[kind].get(namespace, {})
        return [self._read(objects[name]) for name in sorted(objects)]

    def of_deployment(self, kind: str, namespace: str, deployment: str) -> list[Object]:
        """Return the objects of a kind that belong to a deployment, see :func:`deployment_of`, by name."""
        objects = self._objects[kind].get(namespace, {})
        names = self._by_deployment.get((kind, namespace, deployment), ())
        return [self._read(objects[name]) for name in sorted(names)]

    def namespaces(self, kind: str) -> list[str]:
        """Return the namespaces in which there are objects of a kind."""
        return [namespace for namespace, objects in self._objects[kind].items() if objects]

    def names(self, kind: str, namespace: str) -> Collection[str]:
        """Return the names of the objects of a kind in a namespace, of which none is read for that."""
        return frozenset(self._objects[kind].get(namespace, ()))

    def every(self, kind: str) -> list[Object]:
        """Return the objects of a kind in all namespaces."""
        return [self._read(kept) for _, _, kept in self._every(kind)]

    def put(self, kind: str, live: Object) -> None:
        """Take an object as it is now, unless a later version is known, or that it is gone."""
        metadata, version = live["metadata"], _version(live)
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        if kind not in WATCHED or version <= self._gone.get((kind, namespace), {}).get(uid, 0):
            return
        known = self._objects[kind].get(namespace, {}).get(name)
        if known is None or known.version < version:
            text, deployment = _text(lean(kind, live)), deployment_of(kind, live)
            self._drop(kind, namespace, name)
            self._objects[kind].setdefault(namespace, {})[name] = _Kept(uid, version, deployment, text)
            if deployment is not None:
                self._by_deployment.setdefault((kind, namespace, deployment), set()).add(name)

    def remove(self, kind: str, live: Object) -> None:
        """Forget an object that is gone, or that does not carry our labels any more."""
        metadata = live["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        self._gone.setdefault((kind, namespace), {})[uid] = _version(live)
        known = self._objects[kind].get(namespace, {}).get(name)
        if known is not None and known.uid == uid:
            self._drop(kind, namespace, name)

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
        for where, name, known in [*self._every(kind)]:
            if namespace not in {None, where} or known.uid in uids:
                continue
            if version is None or known.version <= version:
                self._drop(kind, where, name)
        for live in listed:
            self.put(kind, live)

    def _drop(self, kind: str, namespace: str, name: str) -> None:
        known = self._objects[kind].get(namespace, {}).pop(name, None)
        if known is not None and known.deployment is not None:
            names = self._by_deployment[kind, namespace, known.deployment]
            names.remove(name)
            if not names:
                del self._by_deployment[kind, namespace, known.deployment]

    def _read(self, kept: _Kept) -> Object:
        live: Object = self._parsed(kept.text)
        return live

    def _every(self, kind: str) -> Iterator[tuple[str, str, _Kept]]:
        # copies: metrics are collected in a thread of their own, while watches bring changes
        for namespace, objects in list(self._objects[kind].items()):
            for name, kept in list(objects.items()):
                yield namespace, name, kept


def lean(kind: str, live: Object) -> Object:
    """Return an object without most of what nobody looks at: what is kept of them is the operator's memory.

    Managed fields are those that others may have a say in: none of pods and EldrDeployments, and those of a status only of EldrScalers. Of a pod's spec its node stays, and of containers what they ask for. Revisions of StatefulSets, which
    carry our labels but are not ours, lose their copy of the template.
    """
    metadata = live["metadata"]
    if kind != contract.KIND_SCALER and "managedFields" in metadata:
        kept = {name: value for name, value in metadata.items() if name != "managedFields"}
        if kind not in {"Pod", contract.KIND_DEPLOYMENT}:
            managed = metadata["managedFields"] or ()
            kept["managedFields"] = [entry for entry in managed if entry.get("subresource") != "status"]
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


def _text(live: Object) -> bytes:
    try:
        return orjson.dumps(live)
    except TypeError:  # nested too deep for it, a number of more than 64 bits, or half a character
        return json.dumps(_cut(live, _MOST_LEVELS)).encode()


def _parsed(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # the same
        return json.loads(text)


def _cut(value: Any, levels: int) -> Any:
    """Return a value without the lists and objects in it that are nested deeper."""
    if isinstance(value, dict):
        return {
            name: _cut(each, levels - 1) for name, each in value.items() if levels > 1 or not _nests(each)
        }
    if isinstance(value, list):
        return [_cut(each, levels - 1) for each in value if levels > 1 or not _nests(each)]
    return value


def _nests(value: Any) -> bool:
    return isinstance(value, dict | list)


def _version(live: Mapping[str, Any]) -> int:
    return int(live["metadata"]["resourceVersion"])


def deployment_of(kind: str, live: Mapping[str, Any]) -> str | None:
    """Return the deployment that an object is, that a fit is for, or that another object names in its label."""
    if kind == contract.KIND_DEPLOYMENT:
        return str(live["metadata"]["name"])
    if kind == contract.KIND_FIT:
        return str(live["spec"]["deploymentRef"]["name"])
    return (live["metadata"].get("labels") or {}).get(contract.LABEL_DEPLOYMENT)
