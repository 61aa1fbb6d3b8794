"""Whether a pod that finds no node, or that a quota refuses, would start in the place of another one of its role. Pure.

One that is kept from starting by anything else, such as a selector that no node has, would not start there either.

References
----------
.. [1] Kubernetes, ``pkg/quota``: "exceeded quota: NAME, requested: AMOUNTS, used: AMOUNTS, limited: AMOUNTS", of what has no room only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

Spec = Mapping[str, Any]

_LACKING = re.compile(r"Insufficient ([^\s,]+?)[.,]?(?:\s|$)")
"""In what the scheduler says of a pod that finds no node."""
_EXCEEDED = re.compile(r"exceeded quota: [^,]+, requested: (\S+), used: (\S+), limited: (\S+)")
_REQUESTS = {"cpu", "memory", "ephemeral-storage"}
"""In a quota short for requests of these."""
_PODS = {"pods", "count/pods"}


def fits_on_node(message: str, pod: Spec, others: Iterable[Spec]) -> bool:
    """Tell whether a pod asks for no more of what nodes lack than another one.

    Parameters
    ----------
    message : str
        Of the scheduler.
    pod, others : mapping
        Specs of pods; the others run.
    """
    lacking = [f"requests.{name}" for name in _LACKING.findall(message)]
    return bool(lacking) and _asks_for_no_more(lacking, pod, others)


def fits_in_quota(message: str, pod: Spec, others: Iterable[Spec]) -> bool:
    """Tell whether a pod asks for no more of what a quota lacks than another one.

    Parameters
    ----------
    message : str
        Of the API server.
    pod, others : mapping
        Specs of pods; the others run.
    """
    match = _EXCEEDED.search(message)
    if match is None:
        return False
    try:
        requested, used, limited = map(_amounts, match.groups())
    except ValueError:
        return False
    # a quota that was lowered has no room for a successor either
    is_full = all(used.get(name, 0) <= limited.get(name, 0) for name in requested)
    return is_full and _asks_for_no_more(requested, pod, others)


def _asks_for_no_more(names: Iterable[str], pod: Spec, others: Iterable[Spec]) -> bool:
    asked = {name: _asked(pod, name) for name in names}
    return any(all(0 < amount <= _asked(other, name) for name, amount in asked.items()) for other in others)


def _amounts(text: str) -> dict[str, Decimal]:
    pairs = (each.partition("=")[::2] for each in text.split(","))
    return {name: parse_quantity(amount) for name, amount in pairs}


def _asked(pod: Spec, name: str) -> Decimal:
    """Return how much a pod asks for, by the name that a quota has for it."""
    if name in _PODS:
        return Decimal(1)
    kind, _, resource = (f"requests.{name}" if name in _REQUESTS else name).partition(".")
    containers = (*pod.get("containers", ()), *(pod.get("initContainers") or ()))
    amounts = ((each.get("resources") or {}).get(kind) or {} for each in containers)
    return sum((parse_quantity(each[resource]) for each in amounts if resource in each), Decimal(0))
