"""``podTemplate`` patches that cannot be merged. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eldr_operator.errors import Problem
from eldr_operator.workloads.podpatch import DELETE, DIRECTIVE, MERGE_KEYS, REPLACE, empties

Object = dict[str, Any]

_REASON = "InvalidPodTemplate"
_DIRECTIVES = (DELETE, REPLACE, "merge")


def problems(patch: Object, field: str) -> list[Problem]:
    """Return what keeps a patch from being merged.

    Parameters
    ----------
    patch : dict
    field : str
        Path of the patch in the custom resource.
    """
    invalid = [
        Problem(_REASON, f"{field}.{key}", value, "only metadata and spec can be patched")
        for key, value in patch.items()
        if key not in {"metadata", "spec"}
    ]
    for key in sorted(patch.keys() & {"metadata", "spec"}):
        here, value = f"{field}.{key}", patch[key]
        if not isinstance(value, dict):
            invalid.append(Problem(_REASON, here, value, "write an object"))
        elif DIRECTIVE in value:
            remedy = "write it deeper, into the objects or items that are meant: it would take everything"
            invalid.append(Problem(_REASON, f"{here}.{DIRECTIVE}", value[DIRECTIVE], remedy))
        else:
            invalid += _of_object(value, here, has_lists=key == "spec")
    return invalid


def _of_object(value: Object, field: str, *, has_lists: bool = False) -> Iterator[Problem]:
    """Look at an object; only pods and items of their lists have lists to merge, elsewhere those names are anybody's."""
    for key, item in value.items():
        here = f"{field}.{key}"
        if key == DIRECTIVE:
            if item not in _DIRECTIVES:
                yield Problem(_REASON, here, item, f"write {DELETE} or {REPLACE}")
        elif key.startswith("$"):
            yield Problem(_REASON, here, item, f"remove it: of such markers only {DIRECTIVE} is known")
        elif has_lists and key in MERGE_KEYS and item is not None:
            yield from _of_list(item, here, MERGE_KEYS[key])
        elif isinstance(item, dict):
            yield from _of_object(item, here)
        elif isinstance(item, list):
            yield from _of_atomic_list(item, here)


def _of_list(items: Any, field: str, merge_key: str) -> Iterator[Problem]:
    if not isinstance(items, list):
        yield Problem(_REASON, field, items, "write a list")
        return
    for index, item in enumerate(items):
        here = f"{field}[{index}]"
        if empties(item):
            continue
        if isinstance(item, dict) and isinstance(item.get(merge_key), str):
            yield from _of_object(item, here, has_lists=True)
        else:
            yield Problem(_REASON, here, item, f"each item needs {merge_key}, by which it is merged")


def _of_atomic_list(items: list[Any], field: str) -> Iterator[Problem]:
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        if DIRECTIVE in item:
            remedy = "remove it: this list replaces the one that was there in any case"
            yield Problem(_REASON, f"{field}[{index}].{DIRECTIVE}", item[DIRECTIVE], remedy)
        else:
            yield from _of_object(item, f"{field}[{index}]")
