"""The routing table: what is wanted, and what is in effect. Pure."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

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

_MOST = 1 << 20
Read = TypeVar("Read")
Text = Annotated[str, Meta(min_length=1)]
Number = Annotated[int, Meta(ge=1, le=_MOST)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class RoutingError(ValueError):
    """An invalid routing document; it names the field and the value."""


class Shard(Struct, frozen=True):
    """A ConfigMap with a part of a centroid set, and its SHA-256."""

    name: str
    sha256: str


class SetRef(Struct, frozen=True):
    """A pointer to a centroid set."""

    fit: Text
    digest: Text
    k: Number
    shards: tuple[Shard, ...] = ()


class DomainShare(Struct, frozen=True, forbid_unknown_fields=True):
    """A domain, and its share of the engines."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")]
    share: Annotated[float, Meta(ge=1e-6, le=1e6)] = 1.0


class PoolSettings(Struct, frozen=True):
    """What a routing document and a worker file have in common.

    Where ``max_waiting`` or ``max_wait_seconds`` is None, the router's own option counts; where ``max_load`` is, load is not bounded.
    """

    model: str = ""
    policy: str = POLICY_DEFAULT
    tau: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.1
    min_candidates: Number = 1
    max_load: Annotated[float, Meta(ge=1.0, le=1e6)] | None = None
    prior: Share = DEFAULT_PRIOR
    domains: tuple[DomainShare, ...] = ()
    max_in_flight: Number = 256
    min_prefill_tokens: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    max_waiting: Annotated[int, Meta(ge=0, le=_MOST)] | None = None
    max_wait_seconds: Annotated[float, Meta(ge=0.001, le=86400.0)] | None = None
    sample_rate: Share = 1.0
    lease_seconds: Annotated[float, Meta(ge=2.0, le=86400.0)] = DEFAULT_LEASE_SECONDS

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, got {shown(self.policy)}")
        names = [domain.name for domain in self.domains]
        if self.policy == POLICY_DOMAIN and not names:
            raise ValueError("domains: policy Domain needs at least one, got none")
        if len(set(names)) < len(names):
            raise ValueError(f"domains: every name counts once, got {shown(names)}")


class RoutingDocument(PoolSettings, frozen=True):
    """A routing document; see :data:`eldr.contract.ROUTING_VERSION`.

    ``slots`` are those that domains share: the first ones, so many, or these.
    """

    epoch: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    slots: Annotated[int, Meta(ge=0, le=_MOST)] | tuple[int, ...] = 0
    active: SetRef | None = None
    staged: SetRef | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What requests are routed by. Immutable.

    A new table takes effect between two requests.

    Attributes
    ----------
    epoch : int
        Epoch of the centroids in effect; older than the document's while its set is refused or still loading.
    """

    document: RoutingDocument
    epoch: int
    policy: Policy
    active: SetRef | None
    centroids: CentroidSet | None

    @property
    def max_in_flight(self) -> int:
        """Limit per decode engine."""
        return self.document.max_in_flight

    @property
    def policy_in_effect(self) -> str:
        """The policy's name; JSQ while ELDR has no centroids."""
        return JSQ().name if self.policy.name == POLICY_ELDR and self.centroids is None else self.policy.name

    @property
    def usable_seconds(self) -> float:
        """Age up to which a prefill result may be used: the lease less a margin."""
        lease = self.document.lease_seconds
        return lease - max(0.1 * lease, 1.0)


def make_table(
    document: RoutingDocument, *, epoch: int, active: SetRef | None, centroids: CentroidSet | None
) -> Table:
    """Return a table with the document's settings and the given set."""
    policy = make_policy(
        document.policy,
        tau=document.tau,
        min_candidates=document.min_candidates,
        max_load=math.inf if document.max_load is None else document.max_load,
        prior=document.prior,
        groups=groups(document),
    )
    return Table(document, epoch, policy, active, centroids)


def groups(document: RoutingDocument) -> dict[str, frozenset[int]]:
    """Return the slots of each domain: the first ones for the largest share."""
    slots = range(document.slots) if isinstance(document.slots, int) else document.slots
    names, shares = (
        [domain.name for domain in document.domains],
        [domain.share for domain in document.domains],
    )
    places = groups_by_share(names, shares, len(slots))
    return {name: frozenset(slots[place] for place in some) for name, some in places.items()}


EMPTY = make_table(RoutingDocument(), epoch=0, active=None, centroids=None)


def read(fields: object, kind: type[Read]) -> Read:
    """Read JSON or YAML; RoutingError names field, type and value."""
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        problem = str(error)
    wanted, _, path = problem.partition(" - at `$")
    where, value = path.strip(".`"), fields
    if not where:
        raise RoutingError(f"{problem:.200}")
    with contextlib.suppress(LookupError, TypeError):  # sets, and names like paths: YAML has them
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[name or int(index)]  # type: ignore[index]
    wanted = wanted.partition(", got ")[0]
    raise RoutingError(f"{where}: {wanted[0].lower()}{wanted[1:]:.200}, got {shown(value)}")


def parse(fields: object) -> RoutingDocument:
    """Read a routing document; RoutingError as of :func:`read`."""
    version = read(fields, dict[str, Any]).get("version")
    if version != ROUTING_VERSION or isinstance(version, bool):
        raise RoutingError(
            f"version: this router reads {ROUTING_VERSION}, got {shown(version)}; upgrade the router first"
        )
    return read(fields, RoutingDocument)
