"""Resource quantities for ``resourceFieldRef``. Pure."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

Object = dict[str, Any]

CAPACITY = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "500Gi", "pods": "250", "amd.com/gpu": "8"}
"""What every node of the agent offers."""

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def quantity(text: str) -> Decimal:
    """Return the value of a Kubernetes quantity.

    Raises
    ------
    ValueError
        If it is none.

    Examples
    --------
    >>> quantity("1500m"), quantity("2Ki")
    (Decimal('1.500'), Decimal('2048'))
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found.group(2) not in {**_DECIMAL, **_BINARY}:
        raise ValueError(f"{text!r} is not a quantity such as 500m, 2 or 4Gi")
    number, unit = Decimal(found.group(1)), found.group(2)
    return number * 1024 ** _BINARY[unit] if unit in _BINARY else number.scaleb(_DECIMAL[unit])


def resource_value(container: Object, reference: Object) -> str:
    """Return what a ``resourceFieldRef`` means: the node's capacity where there is no limit, rounded up; ValueError if it is no valid one."""
    kind, _, name = reference["resource"].partition(".")
    if kind not in {"limits", "requests"} or not name:
        raise ValueError(f"resourceFieldRef {reference['resource']!r}: expected limits.NAME or requests.NAME")
    resources = container.get("resources", {})
    default = CAPACITY.get(name, "0") if kind == "limits" else "0"
    value = quantity(resources.get(kind, {}).get(name, default))
    divisor = quantity(reference.get("divisor", "1"))
    return str(math.ceil(value / (divisor or 1)))
