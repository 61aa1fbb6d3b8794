"""What pods ask for, in numbers. Pure."""

from __future__ import annotations

from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from eldr.doctor.facts import Object
from eldr.status.fields import inside, objects

Amounts = dict[str, Decimal]
_ZERO = Decimal(0)


def amount(value: object) -> Decimal:
    """Return a quantity as a number; 0 where it is none."""
    try:
        return Decimal(parse_quantity(value))
    except (ValueError, TypeError, ArithmeticError):
        return _ZERO


def amounts(quantities: Object) -> Amounts:
    """Return quantities by resource."""
    return {str(name): amount(value) for name, value in quantities.items()}


def of_pod(spec: Object, part: str) -> Amounts:
    """Return what a pod asks for: init containers run one after the other, those that restart run on beside the rest.

    Parameters
    ----------
    part : str
        ``requests`` or ``limits``.
    """
    steady: Amounts = {}
    peak: Amounts = {}
    for container in objects(spec, "initContainers"):
        own = of_container(container, part)
        if container.get("restartPolicy") == "Always":
            steady = _sum(steady, own)
            own = {}
        peak = _max(peak, _sum(steady, own))
    for container in objects(spec, "containers"):
        steady = _sum(steady, of_container(container, part))
    return _max(steady, peak)


def of_container(container: Object, part: str) -> Amounts:
    """Return what a container asks for; Kubernetes takes a limit for the request that is left out."""
    limits = amounts(inside(container, "resources", "limits"))
    if part == "limits":
        return limits
    return limits | amounts(inside(container, "resources", "requests"))


def is_extended(resource: str) -> bool:
    """Tell whether a resource is a device of a plug-in: "amd.com/gpu", "rdma/ib"."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def shown(value: Decimal) -> str:
    """Return an amount as people write it.

    Examples
    --------
    >>> shown(Decimal(2)), shown(Decimal("0.5")), shown(Decimal(3 << 30))
    ('2', '500m', '3Gi')
    """
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        if value >= size:
            return f"{(value / size).quantize(Decimal('0.1')).normalize():f}{unit}"
    integral = value.to_integral_value()
    return f"{integral:f}" if integral == value else f"{(value * 1000).to_integral_value():f}m"


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {name: one.get(name, _ZERO) + other.get(name, _ZERO) for name in [*one, *(other.keys() - one)]}


def _max(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, _ZERO), other.get(name, _ZERO)) for name in [*one, *(other.keys() - one)]}
