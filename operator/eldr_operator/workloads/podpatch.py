"""``podTemplate``: a patch over a generated pod template, much like kubectl's strategic merge. Pure."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]

MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def patched(template: Object, patch: Object) -> Object:
    """Return a pod template with the patch merged in; neither argument is changed.

    Objects are merged, the lists of :data:`MERGE_KEYS` item by item, other lists replaced; null removes a field.
    """
    return _merge(copy.deepcopy(template), patch)


def _merge(base: Object, patch: Object) -> Object:
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        elif isinstance(value, list) and key in MERGE_KEYS and isinstance(base.get(key), list):
            _merge_list(base[key], value, MERGE_KEYS[key])
        else:
            base[key] = _without_nulls(value)
    return base


def _merge_list(base: list[Object], patch: list[Object], merge_key: str) -> None:
    by_key = {item[merge_key]: item for item in base}
    for item in patch:
        found = by_key.get(item[merge_key])
        if found is None:
            base.append(_without_nulls(item))
        else:
            _merge(found, item)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
