"""Which fields of ours others have changed or removed. Pure.

Server-side apply restores them. ``metadata.managedFields`` says whose each field is
(https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management): what was applied and is not ours any more, others have
changed, or removed. Fields that others only add are theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]
Tree = Mapping[str, Any]
"""Set of fields: ``f:name`` or ``k:{...}`` (an item of a list, by its keys) to what lies below; ``.`` is the field itself."""
Path = tuple[str, ...]

_SHOWN = 5
_SPECS = {None, "", "scale"}
"""Subresources by which fields of a manifest are written."""


def lost(live: Object, applied: Object, manager: str) -> str:
    """Return which fields others have taken from us, and who, for example ``spec.replicas (set by kubectl)``; empty if they have none.

    Parameters
    ----------
    live : mapping
        With its managedFields.
    applied : mapping
        Manifest that was applied to it last.
    manager : str
        Our field manager.
    """
    entries = [
        (entry["manager"], entry.get("fieldsV1") or {})
        for entry in live["metadata"].get("managedFields") or ()
        if entry.get("subresource") in _SPECS
    ]
    own: Tree = {}
    for name, tree in entries:
        if name == manager:
            own = _union(own, tree)
    metadata = {
        name: value for name, value in applied["metadata"].items() if name not in {"name", "namespace"}
    }
    wanted = {name: applied[name] for name in applied.keys() - {"apiVersion", "kind"}} | {
        "metadata": metadata
    }
    taken: dict[str, list[str]] = {}
    for path, shown in _missing(wanted, own, (), ""):
        by = next((name for name, tree in entries if name != manager and _has(tree, path)), "")
        taken.setdefault(by, []).append(shown)
    return "; ".join(_described(by, shown) for by, shown in sorted(taken.items(), reverse=True))


def writers(live: Object, manager: str) -> str:
    """Return who else has set fields of an object, beside its status."""
    entries = live["metadata"].get("managedFields") or ()
    names = {entry["manager"] for entry in entries if entry.get("subresource") in _SPECS}
    return ", ".join(sorted(names - {manager}))


def _described(by: str, shown: list[str]) -> str:
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{', '.join(sorted(shown)[:_SHOWN])}{more} ({f'set by {by}' if by else 'removed'})"


def _missing(wanted: Any, tree: Tree, path: Path, shown: str) -> Iterator[tuple[Path, str]]:
    """Yield the fields of a value that a tree lacks, as finely as fields have owners, and how people write them."""
    if not tree:
        return  # a leaf, or one owner for all of it
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            key, at = f"f:{name}", f"{shown}.{name}" if shown else name
            if key in tree:
                yield from _missing(value, tree[key], (*path, key), at)
            elif value:  # what is empty is not kept, and has no owner
                yield (*path, key), at
    elif isinstance(wanted, list):
        keyed = {key: json.loads(key[2:]) for key in tree if key.startswith("k:")}
        for item in wanted if keyed else ():
            at = next((key for key, keys in keyed.items() if has_keys(item, keys)), None)
            name = f"{shown}[{item.get('name', '')}]" if isinstance(item, Mapping) else shown
            if at is None:
                yield path, name
            else:
                yield from _missing(item, tree[at], (*path, at), name)


def _has(tree: Tree, path: Path) -> bool:
    for key in path:
        if key not in tree:
            return False
        tree = tree[key]
    return True


def _union(one: Tree, other: Tree) -> Tree:
    return {key: _union(one.get(key, {}), other.get(key, {})) for key in {*one, *other}}


def has_keys(item: Any, wanted: Mapping[str, Any]) -> bool:
    """Tell whether an item of a list is the one with these keys, as managed fields name it."""
    return isinstance(item, Mapping) and all(item.get(key) == value for key, value in wanted.items())
