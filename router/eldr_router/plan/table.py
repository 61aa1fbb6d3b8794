"""The routing table: what the operator (or the worker file) wants, and what is in effect. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from eldr.centroids import CentroidSet
from eldr.contract import (
    DEFAULT_LEASE_SECONDS,
    POLICIES,
    POLICY_DEFAULT,
    POLICY_DOMAIN,
    POLICY_ELDR,
    ROUTING_VERSION,
)
from eldr.core.balancers import JSQ
from eldr.core.domains import groups_by_share
from eldr.core.policies import DEFAULT_PRIOR, make_policy
from eldr.core.policy import Policy
from eldr.shown import shown

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class RoutingError(ValueError):
    """A routing document that cannot be used; the message names the field and the value."""


@dataclass(frozen=True, slots=True)
class SetRef:
    """A pointer to a centroid set; ``shards`` are (ConfigMap name, sha256 hex)."""

    fit: str
    digest: str
    k: int
    shards: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Intent:
    """A routing document as read; see :data:`eldr.contract.ROUTING_VERSION`. ``slots`` are those that domains share.

    Where ``max_waiting`` or ``max_wait_seconds`` is None, the router's own option counts.
    """

    model: str = ""
    epoch: int = 0
    policy: str = POLICY_DEFAULT
    tau: float = 0.1
    min_candidates: int = 1
    max_load: float = math.inf
    prior: float = DEFAULT_PRIOR
    domains: tuple[tuple[str, float], ...] = ()
    slots: tuple[int, ...] = ()
    max_in_flight: int = 256
    max_waiting: int | None = None
    max_wait_seconds: float | None = None
    sample_rate: float = 1.0
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    active: SetRef | None = None
    staged: SetRef | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What requests are routed by. Immutable: a new table takes effect between two requests.

    Attributes
    ----------
    epoch : int
        Epoch of the centroids in effect; older than the intent's while its set is refused or still loading.
    """

    intent: Intent
    epoch: int
    policy: Policy
    active: SetRef | None
    centroids: CentroidSet | None

    @property
    def max_in_flight(self) -> int:
        """Limit per decode engine."""
        return self.intent.max_in_flight

    @property
    def policy_in_effect(self) -> str:
        """The policy's name; JSQ while ELDR has no centroids."""
        return JSQ().name if self.policy.name == POLICY_ELDR and self.centroids is None else self.policy.name

    @property
    def usable_seconds(self) -> float:
        """Age up to which a prefill result may be used: the lease less a margin."""
        lease = self.intent.lease_seconds
        return lease - max(0.1 * lease, 1.0)


def make_table(intent: Intent, *, epoch: int, active: SetRef | None, centroids: CentroidSet | None) -> Table:
    """Return a table with the intent's settings and the given set."""
    policy = make_policy(
        intent.policy,
        tau=intent.tau,
        min_candidates=intent.min_candidates,
        max_load=intent.max_load,
        prior=intent.prior,
        groups=groups(intent),
    )
    return Table(intent, epoch, policy, active, centroids)


def groups(intent: Intent) -> dict[str, frozenset[int]]:
    """Return the slots of each domain: the first ones for the largest share."""
    names, shares = [name for name, _ in intent.domains], [share for _, share in intent.domains]
    places = groups_by_share(names, shares, len(intent.slots))
    return {name: frozenset(intent.slots[place] for place in some) for name, some in places.items()}


EMPTY = make_table(Intent(), epoch=0, active=None, centroids=None)


def read_settings(fields: dict[str, Any], base: Intent | None = None) -> Intent:
    """Read the settings of a routing document or worker file; absent ones keep ``base``'s values.

    Raises
    ------
    RoutingError
        Names the field and the value.
    """
    base = base or Intent()
    policy = fields.get("policy", base.policy)
    if policy not in POLICIES:
        raise RoutingError(f"policy: expected one of {', '.join(POLICIES)}, got {shown(policy)}")
    domains = _domains(fields, base.domains)
    if policy == POLICY_DOMAIN and not domains:
        raise RoutingError("domains: policy Domain needs at least one, got none")
    model = fields.get("model", base.model)
    if not isinstance(model, str):
        raise RoutingError(f"model: expected a name, got {shown(model)}")
    waiting = _optional(fields, "max_waiting", base.max_waiting, 0, 1 << 20, whole=True)
    return replace(
        base,
        model=model,
        policy=policy,
        tau=_number(fields, "tau", base.tau, 0.0, 2.0),
        min_candidates=int(_number(fields, "min_candidates", base.min_candidates, 1, 1 << 20, whole=True)),
        max_load=_bound(fields, base.max_load),
        prior=_number(fields, "prior", base.prior, 0.0, 1.0),
        domains=domains,
        max_in_flight=int(_number(fields, "max_in_flight", base.max_in_flight, 1, 1 << 20, whole=True)),
        max_waiting=None if waiting is None else int(waiting),
        max_wait_seconds=_optional(fields, "max_wait_seconds", base.max_wait_seconds, 0.001, 86400.0),
        sample_rate=_number(fields, "sample_rate", base.sample_rate, 0.0, 1.0),
        lease_seconds=_number(fields, "lease_seconds", base.lease_seconds, 2.0, 86400.0),
    )


def parse(fields: object) -> Intent:
    """Read a whole routing document; RoutingError names the field and the value."""
    if not isinstance(fields, dict):
        raise RoutingError(f"expected an object, got {type(fields).__name__}")
    version = fields.get("version")
    if version != ROUTING_VERSION or isinstance(version, bool):
        raise RoutingError(
            f"version: this router reads {ROUTING_VERSION}, got {shown(version)}; upgrade the router first"
        )
    return replace(
        read_settings(fields),
        epoch=int(_number(fields, "epoch", 0, 0, 1 << 53, whole=True)),
        slots=tuple(range(int(_number(fields, "slots", 0, 0, 1 << 20, whole=True)))),
        active=_set(fields, "active"),
        staged=_set(fields, "staged"),
    )


def _domains(fields: dict[str, Any], default: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    value = fields.get("domains")
    if value is None:
        return default
    if not isinstance(value, list):
        raise RoutingError(f"domains: expected a list, got {shown(value)}")
    found: dict[str, float] = {}
    for index, entry in enumerate(value):
        where, one = f"domains[{index}]", {"name": entry} if isinstance(entry, str) else entry
        name = one.get("name") if isinstance(one, dict) and one.keys() <= {"name", "share"} else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RoutingError(
                f"{where}: expected a name of letters, digits, '.', '_' and '-', or that and a share, got {shown(entry)}"
            )
        if name in found:
            raise RoutingError(f"{where}.name: {shown(name)} appears twice")
        try:
            found[name] = _number(one, "share", 1.0, 1e-6, 1e6)
        except RoutingError as error:
            raise RoutingError(f"{where}.{error}") from None
    return tuple(found.items())


def _optional(
    fields: dict[str, Any], name: str, default: float | None, low: float, high: float, *, whole: bool = False
) -> float | None:
    return _number(fields, name, low, low, high, whole=whole) if name in fields else default


def _bound(fields: dict[str, Any], default: float) -> float:
    if fields.get("max_load", default) is None:
        return math.inf
    if "max_load" not in fields:
        return default
    return _number(fields, "max_load", default, 1.0, 1e6)


def _number(
    fields: dict[str, Any], name: str, default: float, low: float, high: float, *, whole: bool = False
) -> float:
    value = fields.get(name, default)
    good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not good or not low <= value <= high:  # which no NaN is, and no integer is too large for
        kind = "a whole number" if whole else "a number"
        raise RoutingError(f"{name}: expected {kind} in {low:g}..{high:g}, got {shown(value)}")
    return float(value)


def _set(fields: dict[str, Any], name: str) -> SetRef | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RoutingError(f"{name}: expected an object or null, got {shown(value)}")
    for key in ("fit", "digest"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise RoutingError(f"{name}.{key}: expected text, got {shown(value.get(key))}")
    shards = value.get("shards")
    if not isinstance(shards, list) or not shards:
        raise RoutingError(f"{name}.shards: expected a list, got {shown(shards)}")
    for shard in shards:
        if not isinstance(shard, dict) or not all(
            isinstance(shard.get(key), str) for key in ("name", "sha256")
        ):
            raise RoutingError(f"{name}.shards: expected name and sha256, got {shown(shard)}")
    k = int(_number(value, "k", 0, 1, 1 << 20, whole=True))
    return SetRef(value["fit"], value["digest"], k, tuple((s["name"], s["sha256"]) for s in shards))
