"""Speculative decoding among the arguments for vLLM: with which methods counting is exact, and what both roles must share. Pure."""

from __future__ import annotations

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads.drafts import Drafts, drafts


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return what is wrong with the speculative decoding of both roles; only vLLM's arguments are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    engine = ("spec.engine.args", cr.spec.engine.args)
    prefill = drafts(engine, ("spec.prefill.args", cr.spec.prefill.args))
    decode = drafts(engine, ("spec.decode.args", cr.spec.decode.args))
    found = {
        asked.field: Problem("InvalidArgument", asked.field, asked.shown, remedy)
        for asked in (prefill, decode)
        if (remedy := _refusal(asked))
    }
    if not found and prefill.layers != decode.layers and (prefill.have_kv or decode.have_kv):
        other = decode if decode.field.startswith("spec.decode.") or not prefill.field else prefill
        remedy = (
            "write it into spec.engine.args, alike for both roles: layers that draft have KV too, and NIXL hands KV over only "
            "between engines whose layers are the same"
        )
        found[other.field] = Problem("InvalidArgument", other.field, other.shown, remedy)
    if decode.config and cr.spec.decode.parallelism.balance == contract.BALANCE_ACTIVATIONS and not found:
        remedy = "remove it, or spec.decode.parallelism.balance: the two were never tried together"
        found[decode.field] = Problem("InvalidArgument", decode.field, decode.shown, remedy)
    return list(found.values())


def _refusal(asked: Drafts) -> str:
    """Return what to do about a method that was not tried; without one vLLM finds it out from the model, and the plug-in looks."""
    method = asked.config.get("method")
    if method is None or method in contract.SPECULATION:
        return ""
    return f"use one of {', '.join(contract.SPECULATION)}: counting was not tried with others"
