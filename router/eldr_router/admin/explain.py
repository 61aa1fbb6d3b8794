"""Explain a placement: a dry run of the router's own decision."""

from __future__ import annotations

import math
from typing import Any

import orjson

from eldr.contract import ROLE_DECODE
from eldr.core.balancers import Domain
from eldr.core.marginal import MarginalUnion
from eldr_router.engines.registry import Registry
from eldr_router.http.errors import RouterError, bad_request
from eldr_router.placement.choice import Decision
from eldr_router.placement.placer import Placer
from eldr_router.placement.signature import NO_SIGNATURE, read_signature
from eldr_router.placement.table import Table


def explain(registry: Registry, placer: Placer, table: Table, body: bytes) -> dict[str, Any]:
    """Return what the router would do with a request of this signature.

    Nothing changes.

    Parameters
    ----------
    registry : Registry
    placer : Placer
    table : Table
    body : bytes
        ``{"eldr": counts}`` as a prefill engine sends them, see :data:`eldr.contract.ELDR_KEY`; without them, what
        happens to a request without a signature. ``"sequences"``: how many it runs, 1 if absent. ``"domain"``: what it says it
        belongs to. ``"prompt_tokens"``: those of the counts if absent. ``"max_tokens"``: of each answer.

    Raises
    ------
    RouterError
        400 if the body is none of this.
    """
    fields = _fields(body)
    sequences = _integer(fields, "sequences") or 1
    domain = fields.get("domain")
    if domain is not None and not isinstance(domain, str):
        raise bad_request(f"domain: expected a name, got {domain!r:.40}", param="domain")
    counts = fields.get("eldr")
    signature = NO_SIGNATURE if counts is None else read_signature(counts)
    counted = 0 if signature.counts is None else signature.counts.tokens
    demand = registry.kv_room.demand(
        _integer(fields, "prompt_tokens") or counted, _integer(fields, "max_tokens"), sequences
    )
    answer: dict[str, Any] = {
        "v": 1,
        "signature": signature.quality,
        "policy": table.policy_in_effect,
        "epoch": table.epoch,
        "fit": None if table.active is None else table.active.fit,
        "tau": table.document.tau,
        "max_in_flight": table.max_in_flight,
        "kv_expected": demand.size,
        "prior": None,
        "choice": None,
    }
    domains = table.policy.groups if isinstance(table.policy, Domain) else {}
    rows: dict[str, dict[str, Any]] = {}
    known = registry.endpoints(ROLE_DECODE)
    for endpoint, total in zip(known, registry.totals(known), strict=True):
        rows[endpoint.name] = {
            "name": endpoint.name,
            "slot": endpoint.spec.slot,
            "healthy": registry.is_healthy(endpoint),
            "in_flight": endpoint.in_flight,
            "total": total,
            "bound": registry.concurrency_limit(endpoint, table.max_in_flight),
            "kv_held": registry.expected_kv_tokens(endpoint),
            "kv_tokens": None if endpoint.cache is None else endpoint.cache.tokens,
            "eligible": False,
            "domain": next((name for name, slots in domains.items() if endpoint.spec.slot in slots), None),
            "similarity": None,
            "in_band": None,
            "toll": None,
            "active_experts": None,
            "growth": None,
            "cost_seconds": None,
        }
    try:
        decision = placer.decide(
            table, signature, (), sequences, registry.turns[ROLE_DECODE] + 1, domain=domain, demand=demand
        )
    except RouterError as error:
        answer["error"] = {"status": error.status, "code": error.code, "message": error.message}
        return {**answer, "engines": list(rows.values())}
    similarities, outlook = decision.situation.similarity, decision.situation.outlook
    best = max((s for s in similarities or () if not math.isnan(s)), default=0.0)
    for at, endpoint in enumerate(decision.candidates.endpoints):
        row = rows[endpoint.name]
        row["eligible"] = True
        if similarities is not None:
            similarity = similarities[at]
            without = math.isnan(similarity)
            row["similarity"] = None if without else round(similarity, 6)
            if decision.scores is not None:
                row["in_band"] = without or similarity >= best - table.document.tau
        if outlook is not None:
            row["active_experts"] = round(outlook.active[at], 3)
            row["growth"] = round(outlook.growth[at], 3)
    if outlook is not None and isinstance(table.policy, MarginalUnion):
        for endpoint, cost in zip(
            decision.candidates.endpoints, table.policy.costs(decision.situation), strict=True
        ):
            rows[endpoint.name]["cost_seconds"] = round(cost, 7)
        if similarities is not None and decision.situation.tolls is not None:
            for endpoint, toll in zip(decision.candidates.endpoints, decision.situation.tolls, strict=True):
                rows[endpoint.name]["toll"] = round(toll, 6)
    answer.update(
        policy=decision.policy,
        prior=_prior(decision) if isinstance(table.policy, MarginalUnion) else None,
        reason=decision.reason,
        candidates=decision.choice.n_candidates,
        choice=decision.endpoint.name,
    )
    return {**answer, "engines": list(rows.values())}


def _integer(fields: dict[str, Any], name: str) -> int | None:
    """Return a field that is a whole number from 1; None without it."""
    if name not in fields:
        return None
    value = fields[name]
    if type(value) is not int or value < 1:
        raise bad_request(f"{name}: expected a whole number from 1, got {value!r:.40}", param=name)
    return int(value)


def _prior(decision: Decision) -> str | None:
    if decision.situation.similarity is None:
        return None
    return "learned" if decision.scores is None else "fitted"


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the request body is not JSON: {error}", "invalid_json") from None
    if not isinstance(fields, dict):
        raise bad_request(f"the request body must be an object, got {type(fields).__name__}", "invalid_json")
    return fields
