"""``podTemplate`` patches that cannot be merged. Pure."""

from __future__ import annotations

from typing import Any

from eldr_operator.errors import Problem
from eldr_operator.workloads.podpatch import MERGE_KEYS

Object = dict[str, Any]


def problems(patch: Object, field: str) -> list[Problem]:
    """Return what keeps a patch from being merged.

    Parameters
    ----------
    patch : dict
    field : str
        Path of the patch in the custom resource.
    """
    found = [
        Problem("InvalidPodTemplate", f"{field}.{key}", value, "only metadata and spec can be patched")
        for key, value in patch.items()
        if key not in {"metadata", "spec"}
    ]
    for key in sorted(patch.keys() & {"metadata", "spec"}):
        if isinstance(patch[key], dict):
            found += _list_problems(patch[key], f"{field}.{key}")
        else:
            found.append(Problem("InvalidPodTemplate", f"{field}.{key}", patch[key], "write an object"))
    return found


def _list_problems(value: Object, field: str) -> list[Problem]:
    found: list[Problem] = []
    for key, items in value.items():
        here = f"{field}.{key}"
        if key in MERGE_KEYS and items is not None:
            if not isinstance(items, list):
                found.append(Problem("InvalidPodTemplate", here, items, "write a list"))
                continue
            for index, item in enumerate(items):
                name = item.get(MERGE_KEYS[key]) if isinstance(item, dict) else None
                if not isinstance(name, str):
                    remedy = f"each item needs {MERGE_KEYS[key]}, by which it is merged"
                    found.append(Problem("InvalidPodTemplate", f"{here}[{index}]", item, remedy))
                else:
                    found += _list_problems(item, f"{here}[{index}]")
    return found
