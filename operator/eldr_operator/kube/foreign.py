"""What others added to the pod template of an object that is ours, and patches that take it away. Pure.

Server-side apply puts back what others changed, and leaves what they added. ``metadata.managedFields`` says who set what
(https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Object = Mapping[str, Any]
Tree = Mapping[str, Any]
"""Set of fields: ``f:name`` or ``k:{...}`` (an item of a list, by its keys) to what lies below; ``.`` is the field itself."""
Path = tuple[str | int, ...]

_POD: Final = ("spec", "template", "spec")
_ITSELF: Final = "."
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Addition:
    """A field or list item that only others have set.

    Parameters
    ----------
    path : tuple
        Names and positions from the object's root.
    shown : str
        For people, for example ``containers[engine].env[A]``.
    manager : str
        Who set it, for example ``kubectl-set``.
    """

    path: Path
    shown: str
    manager: str


def additions(live: Object, manager: str) -> list[Addition]:
    """Return what others added under ``spec.template.spec``.

    Fields of our own manager are ours whatever the operation: admission webhooks that change our requests write in our
    name. Entries of subresources, and all outside of the pod's spec, are left out: autoscalers and
    ``kubectl rollout restart`` go on working.

    Parameters
    ----------
    live : mapping
        A Deployment or StatefulSet, with its managedFields.
    manager : str
        Our field manager.

    Returns
    -------
    list of Addition
        None of them lies within another one.
    """
    entries = [
        (entry["manager"], tree)
        for entry in live["metadata"].get("managedFields") or ()
        if not entry.get("subresource") and (tree := _pod_fields(entry.get("fieldsV1") or {}))
    ]
    own: Tree = {}
    for name, tree in entries:
        if name == manager:
            own = _union(own, tree)
    pod = live
    for part in _POD:
        pod = pod.get(part) or {}
    found: dict[Path, Addition] = {}
    for name, tree in entries:
        if name != manager:
            for path, shown in _foreign(tree, own, pod):
                found.setdefault(path, Addition((*_POD, *path), shown.removeprefix("."), name))
    whole = found.keys()
    return [
        each
        for path, each in found.items()
        if not any(path[:length] in whole for length in range(1, len(path)))
    ]


def removal(live: Object, found: Iterable[Addition], restorer: str) -> list[dict[str, Any]]:
    """Return the JSON patch that removes additions, and what the manager ``restorer`` has a say in; empty if there is neither.

    It fails where that has changed since ``live`` was read.
    """
    # Later items of a list go first, so that positions stay true.
    paths = sorted((each.path for each in found), key=_order, reverse=True)
    operations: list[dict[str, Any]] = [{"op": "remove", "path": _pointer(path)} for path in paths]
    metadata = live["metadata"]
    entries = metadata.get("managedFields") or []
    kept = [entry for entry in entries if entry["manager"] != restorer]
    if len(kept) < len(entries):
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
        operations += [version, {"op": "replace", "path": "/metadata/managedFields", "value": kept}]
    return [*_unchanged(live), *operations] if operations else []


def restoration(live: Object, manifest: Object) -> list[dict[str, Any]]:
    """Return the JSON patch that puts the pod's whole spec back; it fails where that has changed since ``live`` was read.

    For what server-side apply is refused: beside another source of the same volume, for example. Who sends it has a say
    in what it sets from then on, beside our apply, and must lose it (:func:`removal`), or it stays for ever.
    """
    pod = manifest["spec"]["template"]["spec"]
    return [*_unchanged(live), {"op": "replace", "path": _pointer(_POD), "value": pod}]


def told(found: Sequence[Addition]) -> str:
    """Say what was set and by whom, for an Event or a log."""
    by_manager: dict[str, list[str]] = {}
    for each in found:
        by_manager.setdefault(each.manager, []).append(each.shown)
    return "; ".join(
        f"{', '.join(shown[:_SHOWN])}{f' and {len(shown) - _SHOWN} more' if len(shown) > _SHOWN else ''} (set by {name})"
        for name, shown in by_manager.items()
    )


def _unchanged(live: Object) -> list[dict[str, Any]]:
    metadata = live["metadata"]
    return [
        {"op": "test", "path": f"/metadata/{key}", "value": metadata[key]} for key in ("uid", "generation")
    ]


def _order(path: Path) -> tuple[str, ...]:
    return tuple(f"{part:09d}" if isinstance(part, int) else part for part in path)


def _pointer(path: Path) -> str:
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _pod_fields(tree: Tree) -> Tree:
    for part in _POD:
        tree = tree.get(f"f:{part}") or {}
    return tree


def _union(one: Tree, other: Tree) -> Tree:
    return {key: _union(one.get(key, {}), other.get(key, {})) for key in {*one, *other}}


def _foreign(tree: Tree, own: Tree, live: Any) -> Iterator[tuple[Path, str]]:
    """Yield what stands in a tree and not in ours, as far as it is there; a whole subtree at once where it was made by others."""
    for key, below in tree.items():
        place = _place(key, live)
        if place is None:
            continue
        step, shown = place
        ours = own.get(key)
        if ours is None and (not below or _ITSELF in below):
            yield (step,), shown
            continue
        for path, rest in _foreign(below, ours or {}, live[step]):
            yield (step, *path), shown + rest


def _place(key: str, live: Any) -> tuple[str | int, str] | None:
    """Return where a field or item stands in an object or list, and how it is shown; None if it is not there, or twice."""
    kind, _, name = key.partition(":")
    if kind == "f" and isinstance(live, Mapping):
        return (name, f".{name}") if name in live else None
    if kind not in {"k", "v"} or not isinstance(live, list):
        return None
    wanted = json.loads(name)
    positions = [
        index
        for index, item in enumerate(live)
        if (has_keys(item, wanted) if kind == "k" else item == wanted)
    ]
    if len(positions) != 1:
        return None
    values = wanted.values() if kind == "k" else [wanted]
    return positions[0], f"[{','.join(map(str, values))}]"


def has_keys(item: Any, wanted: Mapping[str, Any]) -> bool:
    """Tell whether an item of a list is the one with these keys, as managed fields name it."""
    return isinstance(item, Mapping) and all(item.get(key) == value for key, value in wanted.items())
