"""Objects as fields: the path of each value that one manager can own, as ``metadata.managedFields`` names it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Path = tuple[str, ...]
Fields = dict[Path, Any]

_KEYS = {
    "ownerReferences": "uid",
    "conditions": "type",
    "volumeMounts": "mountPath",
    **dict.fromkeys(("containers", "initContainers", "env", "volumes", "ports"), "name"),
}
"""Lists whose items are owned one by one, and by which field they are told apart."""


def flat(value: Any, path: Path = ()) -> Fields:
    """Return the fields of a value."""
    return dict(_flat(value, path))


def _flat(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            if below is not None:
                yield from _flat(below, (*path, f"f:{name}"))
    elif isinstance(value, list) and value and (key := _key(path, value)):
        for item in value:
            yield from _flat(item, (*path, f"k:{json.dumps({key: item[key]})}"))
    else:
        yield path, value


def _key(path: Path, items: list[Any]) -> str:
    key = _KEYS.get(path[-1].removeprefix("f:"), "") if path else ""
    return key if key and all(isinstance(item, dict) and key in item for item in items) else ""


def built(fields: Mapping[Path, Any]) -> Any:
    """Return the value that some fields are."""
    root: dict[str, Any] = {}
    for path, value in fields.items():
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = _Leaf(value)
    return _value(root)


class _Leaf:
    def __init__(self, value: Any) -> None:
        self.value = value


def _value(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if all(name.startswith("k:") for name in node) and node:
        return [_value(below) for below in node.values()]
    return {name.removeprefix("f:"): _value(below) for name, below in node.items()}


def put(fields: Fields, path: Path, value: Any) -> None:
    """Set one field, in the place of what it and another one cannot both be."""
    if path not in fields:
        for length in range(1, len(path)):
            fields.pop(path[:length], None)
        for other in [each for each in fields if each[: len(path)] == path]:
            del fields[other]
    fields[path] = value


def tree(paths: Iterable[Path]) -> dict[str, Any]:
    """Return paths as ``fieldsV1``; who has set what an item is told apart by owns the item itself, too."""
    root: dict[str, Any] = {}
    for path in paths:
        node = root
        for part in path:
            node = node.setdefault(part, {})
        item = path[-2] if len(path) > 1 else ""
        if item.startswith("k:") and path[-1].removeprefix("f:") in json.loads(item[2:]):
            owned = root
            for part in path[:-1]:
                owned = owned[part]
            owned["."] = {}
    return root
