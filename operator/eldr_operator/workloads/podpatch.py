"""``podTemplate``: a patch over a generated pod template, as kubectl's strategic merge. Pure."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

MERGE_KEYS: Final = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists that are merged item by item, and the field by which their items find each other."""
DIRECTIVE: Final = "$patch"
"""Key of an object or list item that says what becomes of the one in its place. Unlike null, it survives ``kubectl apply``."""
DELETE: Final = "delete"
REPLACE: Final = "replace"

_PROBE = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})
_HOOK = frozenset({"exec", "httpGet", "sleep", "tcpSocket"})
_UNIONS: Final = {
    "env": frozenset({"value", "valueFrom"}),
    "valueFrom": frozenset({"configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"}),
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "startupProbe": _PROBE,
    "postStart": _HOOK,
    "preStop": _HOOK,
}
"""Fields of which the API server takes one at most, by the field or list that holds them."""


def patched(template: Object, patch: Object) -> Object:
    """Return a pod template with the patch merged in; neither argument is changed.

    Objects are merged, the lists of :data:`MERGE_KEYS` item by item, other lists replaced; null removes a field, as
    does an object that holds only ``$patch: delete``. Of the sources of a volume or variable and of the actions of a
    probe or hook, the one that the patch names takes the place of any other.
    """
    return _merged(template, patch, "")


def _merged(base: Object, patch: Object, field: str) -> Object:
    """Merge two objects that stand under ``field``, or in the list of that name."""
    made = _without_rivals(base, patch, field)
    for key, value in patch.items():
        current = made.get(key)
        if key == DIRECTIVE:
            continue
        if value is None or directive(value) == DELETE:
            made.pop(key, None)
        elif isinstance(value, dict) and isinstance(current, dict) and directive(value) != REPLACE:
            made[key] = _merged(current, value, key)
        elif isinstance(value, list) and isinstance(current, list) and key in MERGE_KEYS:
            made[key] = _merged_list(current, value, key)
        else:
            made[key] = _plain(value)
    return made


def _merged_list(base: list[Object], patch: list[Object], field: str) -> list[Object]:
    merge_key = MERGE_KEYS[field]
    items = {} if any(map(empties, patch)) else {item[merge_key]: item for item in base}
    for item in patch:
        if empties(item):
            continue
        base_item, name = items.get(item[merge_key]), item[merge_key]
        if directive(item) == DELETE:
            items.pop(name, None)
        elif base_item is None or directive(item) == REPLACE:
            items[name] = _plain(item)
        else:
            items[name] = _merged(base_item, item, field)
    return list(items.values())


def _without_rivals(base: Object, patch: Object, field: str) -> Object:
    """Return an object without the members of a union that the patch puts another one in the place of."""
    members = _UNIONS.get(field, frozenset())
    if field == "volumes":
        members = frozenset({*base, *patch} - {MERGE_KEYS[field], DIRECTIVE})
    chosen = [key for key in members if patch.get(key) is not None and directive(patch[key]) != DELETE]
    return {key: value for key, value in base.items() if not chosen or key not in members or key in patch}


def directive(value: Any) -> Any:
    """Return what an object says of the one in its place, None if it says nothing."""
    return value.get(DIRECTIVE) if isinstance(value, dict) else None


def empties(item: Any) -> bool:
    """Tell whether an item of a list says that the list takes the place of the one that was there."""
    return bool(item == {DIRECTIVE: REPLACE})


def _plain(value: Any) -> Any:
    """Return what a patch adds, without what it says about removing."""
    if isinstance(value, dict):
        return {
            key: _plain(item)
            for key, item in value.items()
            if key != DIRECTIVE and item is not None and directive(item) != DELETE
        }
    if isinstance(value, list):
        return [_plain(item) for item in value if directive(item) != DELETE and not empties(item)]
    return value
