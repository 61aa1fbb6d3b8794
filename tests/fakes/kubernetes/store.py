"""What an API server does with an object that is written: versions, generations, owners of fields; and who is told."""

from __future__ import annotations

import base64
import copy
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from eldr import contract
from eldr_operator.kube.api import RESOURCES
from tests.fakes.kubernetes.fields import Fields, Path, built, flat, put, tree
from tests.support.kube import Refused

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace and name."""
Told = Callable[[str, str, Object], None]

_UNVERSIONED = {
    "ConfigMap",
    "Secret",
    "Service",
    "ServiceAccount",
    "Pod",
    "Event",
    "ControllerRevision",
    "Lease",
}
_UNVERSIONED |= {"Role", "RoleBinding"}
"""Kinds without generations."""
_WITHOUT_STATUS = {contract.KIND_DEPLOYMENT, contract.KIND_FIT, contract.KIND_SCALER}
"""Kinds that are created without it."""
_SERVERS = {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
"""Of metadata: nobody sets these."""


@dataclass(slots=True)
class _Stored:
    fields: Fields
    system: Object
    managers: dict[tuple[str, str, str], set[Path]] = field(default_factory=dict)
    made: Object = field(default_factory=dict)

    def shown(self) -> Object:
        """Return it as it is read; nobody changes what was read."""
        if self.made.get("metadata", {}).get("resourceVersion") == self.system["resourceVersion"]:
            return self.made
        made: Object = built(self.fields)
        entries = [
            {"manager": manager, "operation": operation, "fieldsV1": tree(sorted(paths))}
            | ({"subresource": part} if part else {})
            for (manager, operation, part), paths in self.managers.items()
            if paths
        ]
        made["metadata"] = {**made["metadata"], **self.system, "managedFields": entries}
        self.made = copy.deepcopy(made)
        return self.made


class Store:
    """Objects of all kinds.

    Parameters
    ----------
    stamp : callable
        Returns the time as objects show it.
    """

    def __init__(self, stamp: Callable[[], str]) -> None:
        self.stamp = stamp
        self._objects: dict[Key, _Stored] = {}
        self._numbers = itertools.count(1)
        self.version = 1  # etcd's before anything is written
        self.listeners: list[Told] = []

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """Return an object; Refused where there is none."""
        return self._found((kind, namespace, name)).shown()

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None where there is none."""
        stored = self._objects.get((kind, namespace, name))
        return stored and stored.shown()

    def list(self, kind: str, namespace: str | None, labels: str = "") -> list[Object]:
        """Return the objects of a kind, by name."""
        keys = sorted(key for key in self._objects if key[0] == kind and namespace in {None, key[1]})
        return [shown for key in keys if matches(shown := self._objects[key].shown(), labels)]

    def uids(self) -> set[str]:
        """Return the uids of all objects."""
        return {stored.system["uid"] for stored in self._objects.values()}

    def everything(self) -> Iterator[Object]:
        """Return all objects."""
        yield from [stored.shown() for stored in self._objects.values()]

    def create(self, body: Object, manager: str) -> Object:
        """Create an object."""
        made = copy.deepcopy(body)
        metadata = made["metadata"]
        if "name" not in metadata:
            metadata["name"] = f"{metadata.pop('generateName')}{next(self._numbers):05}"
        key = (made["kind"], metadata["namespace"], metadata["name"])
        if key in self._objects:
            raise Refused(HTTPStatus.CONFLICT, f'{key[0]} "{key[2]}" already exists')
        if made["kind"] in _WITHOUT_STATUS:
            made.pop("status", None)
        for name, value in made.pop("stringData", {}).items():
            made.setdefault("data", {})[name] = base64.b64encode(value.encode()).decode()
        stored = self._new(key, made)
        stored.managers[manager, "Update", ""] = _ownable(stored.fields)
        return self._changed(key, stored, "ADDED", is_spec=True)

    def apply(self, body: Object, manager: str, subresource: str = "") -> Object:
        """Apply an object by server-side apply, with force."""
        metadata = body["metadata"]
        key = (body["kind"], metadata["namespace"], metadata["name"])
        stored = self._objects.get(key)
        if stored is None:
            if subresource:
                raise Refused(HTTPStatus.NOT_FOUND, f'{key[0]} "{key[2]}" not found')
            if "uid" in metadata:
                raise Refused(HTTPStatus.CONFLICT, "uid mismatch: there is no such object")
            stored = self._new(key, {name: body[name] for name in ("apiVersion", "kind", "metadata")})
            metadata = {}
            event = "ADDED"
        else:
            event = "MODIFIED"
        self._check(stored, metadata)
        before = dict(stored.fields)
        values, me = _own(body), (manager, "Apply", subresource)
        mine = {path for path in _ownable(values) if _is_status(path) == (subresource == "status")}
        others = [paths for one, paths in stored.managers.items() if one != me]
        for path in stored.managers.get(me, set()) - mine - set().union(*others):
            stored.fields.pop(path, None)
        for path in values:
            if path in mine and (path not in stored.fields or stored.fields[path] != values[path]):
                put(stored.fields, path, values[path])
                for paths in others:
                    paths.discard(path)
        stored.managers[me] = mine
        # lists have the order of who applied them
        stored.fields = {
            path: stored.fields[path] for path in values if path in stored.fields
        } | stored.fields
        return self._written(key, stored, before, event)

    def replace(self, body: Object, manager: str, subresource: str = "") -> Object:
        """Write a whole object over the one that is there."""
        metadata = body["metadata"]
        key = (body["kind"], metadata["namespace"], metadata["name"])
        stored = self._found(key)
        self._check(stored, {name: value for name, value in metadata.items() if name == "resourceVersion"})
        before, after = dict(stored.fields), _own(body)
        changed = {
            path
            for path in before.keys() | after.keys()
            if _is_status(path) == (subresource == "status")
            and (path not in before or path not in after or before[path] != after[path])
        }
        for path in changed:
            for paths in stored.managers.values():
                paths.discard(path)
            if path not in after:
                stored.fields.pop(path, None)
        for path in [path for path in after if path in changed]:
            put(stored.fields, path, after[path])
        mine = stored.managers.setdefault((manager, "Update", subresource), set())
        mine |= _ownable({path: after[path] for path in changed & after.keys()})
        return self._written(key, stored, before, "MODIFIED")

    def merge(self, key: Key, patch: Object, manager: str, subresource: str = "") -> Object:
        """Merge a patch into an object."""
        body = self._found(key).shown()
        part = "" if subresource == "scale" else subresource
        return self.replace(_merged(body, patch), manager, part)

    def json_patch(self, key: Key, operations: list[Object], manager: str) -> Object:
        """Change an object by a JSON patch."""
        stored = self._found(key)
        body = copy.deepcopy(stored.shown())
        for each in operations:
            _operate(body, each)
        if body["metadata"].get("managedFields") != stored.shown()["metadata"]["managedFields"]:
            names = {entry["manager"] for entry in body["metadata"]["managedFields"]}
            stored.managers = {one: paths for one, paths in stored.managers.items() if one[0] in names}
        return self.replace(body, manager)

    def delete(self, key: Key, uid: str = "") -> None:
        """Delete an object."""
        stored = self._found(key)
        if uid and uid != stored.system["uid"]:
            raise Refused(HTTPStatus.CONFLICT, "the UID in the precondition is that of another object")
        del self._objects[key]
        self.version += 1
        stored.system["resourceVersion"] = str(self.version)
        self._tell(key[0], "DELETED", stored.shown())

    def _new(self, key: Key, body: Object) -> _Stored:
        system = {"uid": f"uid-{next(self._numbers)}", "creationTimestamp": self.stamp()}
        stored = self._objects[key] = _Stored(_own(body), system)
        return stored

    def _found(self, key: Key) -> _Stored:
        if key not in self._objects:
            raise Refused(HTTPStatus.NOT_FOUND, f'{key[0]} "{key[2]}" not found')
        return self._objects[key]

    @staticmethod
    def _check(stored: _Stored, metadata: Object) -> None:
        for name in ("uid", "resourceVersion"):
            if name in metadata and name in stored.system and metadata[name] != stored.system[name]:
                raise Refused(HTTPStatus.CONFLICT, f"the object has another {name}; get it and try again")

    def _written(self, key: Key, stored: _Stored, before: Fields, event: str) -> Object:
        if event == "MODIFIED" and stored.fields == before:
            return stored.shown()
        is_spec = {path: value for path, value in before.items() if _counts(path)} != {
            path: value for path, value in stored.fields.items() if _counts(path)
        }
        return self._changed(key, stored, event, is_spec=is_spec)

    def _changed(self, key: Key, stored: _Stored, event: str, *, is_spec: bool) -> Object:
        self.version += 1
        stored.system["resourceVersion"] = str(self.version)
        if is_spec and key[0] not in _UNVERSIONED:
            stored.system["generation"] = stored.system.get("generation", 0) + 1
        self._tell(key[0], event, stored.shown())
        return stored.shown()

    def _tell(self, kind: str, event: str, shown: Object) -> None:
        for listener in [*self.listeners]:
            listener(kind, event, shown)


def matches(live: Object, selector: str) -> bool:
    """Tell whether an object has the labels of a selector."""
    labels = live["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


def kind_of(api_version: str, plural: str) -> str:
    """Return the kind that lives at a path."""
    return next(kind for kind, found in RESOURCES.items() if found == (api_version, plural))


def _own(body: Object) -> Fields:
    metadata = {name: value for name, value in body["metadata"].items() if name not in _SERVERS}
    return flat({**body, "metadata": metadata})


def _ownable(fields: Fields) -> set[Path]:
    heads = {("f:apiVersion",), ("f:kind",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace")}
    return fields.keys() - heads


def _is_status(path: Path) -> bool:
    return path[0] == "f:status"


def _counts(path: Path) -> bool:
    return path[0] not in {"f:metadata", "f:status"}


def _merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(value, dict):
        return copy.deepcopy(patch)
    made = dict(value)
    for name, below in patch.items():
        if below is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), below) if isinstance(below, dict) else copy.deepcopy(below)
    return made


def _operate(body: Any, operation: Object) -> None:
    *parts, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")]
    node = body
    for part in parts:
        node = node[int(part)] if isinstance(node, list) else node[part]
    place: Any = int(last) if isinstance(node, list) else last
    if operation["op"] == "test":
        if json.dumps(node[place], sort_keys=True) != json.dumps(operation["value"], sort_keys=True):
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "the server rejected our request: a test failed")
    elif operation["op"] == "remove":
        del node[place]
    else:
        node[place] = copy.deepcopy(operation["value"])
