"""What is known of the decode engines' steps, as the admin port tells it."""

from __future__ import annotations

from typing import Any

from eldr.contract import ROLE_DECODE
from eldr.core.step_time import StepTime
from eldr_router.plan.table import Table
from eldr_router.state.locality import Locality
from eldr_router.state.registry import Registry


def n_experts(locality: Locality, table: Table) -> int | None:
    """Return the experts per layer of the model that is served, or None while nothing tells."""
    unions, centroids = locality.unions, table.centroids
    if unions is not None:
        return unions.shape.n_experts
    return None if centroids is None else centroids.n_experts


def unions_state(locality: Locality, registry: Registry) -> dict[str, Any] | None:
    """Return the expected unions; None while the policy asks for none, or no signature was seen."""
    unions = locality.unions
    if unions is None:
        return None
    decode = registry.endpoints(ROLE_DECODE)
    names = [endpoint.name for endpoint in decode]
    outlook = unions.outlook(None, names, registry.totals(decode))
    return {
        "layers": unions.shape.layers,
        "requests": unions.requests,
        "tables": unions.tellers,
        "active_experts": {
            name: round(active, 3) for name, active in zip(names, outlook.active, strict=True)
        },
    }


def law_state(locality: Locality, registry: Registry, table: Table) -> dict[str, Any] | None:
    """Return the learned step-time law; None until engines have told enough."""
    laws, experts = locality.laws, n_experts(locality, table)
    learned, share = laws.learned, laws.expert_share()
    if learned is None or experts is None or share is None:
        return None
    return {
        **_constants(learned.pool),
        "windows": learned.windows,
        "noise": round(learned.noise, 4),
        "expert_share": round(share[0], 4),
        "expert_share_error": round(share[1], 4),
        "engines": {
            endpoint.name: _constants(laws.of(endpoint.name, experts))
            for endpoint in registry.endpoints(ROLE_DECODE)
        },
    }


def _constants(law: StepTime) -> dict[str, float]:
    return {
        "fixed": round(law.fixed, 9),
        "per_expert": round(law.per_expert, 9),
        "per_request": round(law.per_request, 9),
    }
