"""Whether an object is as the operator applied it last, so that a restarted operator has nothing to send. Pure.

``metadata.managedFields`` says which fields an apply of ours still owns: others who change one take it over. So what we own, and no
more, must be what the manifest says, with the values that it says.

References
----------
.. [1] Kubernetes documentation, Server-Side Apply, "Field management".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from eldr_operator.kube.foreign import has_keys

Object = Mapping[str, Any]

_HEAD = {"apiVersion", "kind"}
_NAMES = {"name", "namespace"}
"""Of metadata; nobody owns them."""


def is_as_applied(live: Object, manifest: Object, manager: str) -> bool:
    """Tell whether an apply of a manifest would change nothing; False where that is not certain.

    Parameters
    ----------
    live : mapping
        With its managedFields.
    manager : str
        Our field manager.
    """
    ours = {
        entry["operation"]: entry.get("fieldsV1") or {}
        for entry in live["metadata"].get("managedFields") or ()
        if entry["manager"] == manager and not entry.get("subresource")
    }
    if not ours:
        return False
    # what was created and never applied since is an update
    tree = ours.get("Apply", ours.get("Update", {}))
    wanted = {name: value for name, value in manifest.items() if name not in _HEAD}
    wanted["metadata"] = {name: value for name, value in manifest["metadata"].items() if name not in _NAMES}
    return _matches(wanted, tree, live)


def _matches(wanted: Any, tree: Object, live: Any) -> bool:
    """Compare a value with what lies at its place, as finely as the fields of it have owners."""
    below = tree.keys() - {"."}
    if isinstance(wanted, dict) and any(name.startswith("f:") for name in below):
        if not isinstance(live, dict):
            return False
        # what is empty, such as paused: false, is not kept, and has no owner
        kept = {
            name: value for name, value in wanted.items() if value or name in live or f"f:{name}" in below
        }
        return {f"f:{name}" for name in kept} == below and all(
            _matches(value, tree[f"f:{name}"], live.get(name)) for name, value in kept.items()
        )
    if isinstance(wanted, list) and any(name.startswith("k:") for name in below):
        return isinstance(live, list) and len(wanted) == len(below) and all(_items(wanted, tree, live))
    if isinstance(wanted, list) and below:  # v: a set of values
        return {f"v:{json.dumps(value)}" for value in wanted} == below
    return _same(wanted, live)


def _items(wanted: list[Any], tree: Object, live: list[Any]) -> Iterator[bool]:
    for name, below in tree.items():
        if name == ".":
            continue
        keys = json.loads(name.removeprefix("k:"))
        ours, theirs = _item(wanted, keys), _item(live, keys)
        yield ours is not None and theirs is not None and _matches(ours, below, theirs)


def _item(items: list[Any], keys: Object) -> Any:
    """Return the item of a list that has these keys; None also where it leaves one at its default."""
    return next((item for item in items if has_keys(item, keys)), None)


def _same(wanted: Any, live: Any) -> bool:
    """Compare a value that has one owner: it holds nothing but what was applied, and a reference's default version."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        if "fieldPath" in wanted and live.get("apiVersion") == "v1":
            wanted = {"apiVersion": "v1", **wanted}
        return wanted.keys() == live.keys() and all(
            _same(value, live[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(live, list):
        return len(wanted) == len(live) and all(map(_same, wanted, live))
    return bool(wanted == live) or (not wanted and live is None)
