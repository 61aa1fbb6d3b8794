"""Speculative decoding among the arguments for vLLM: what both roles must share, and with which methods nothing is counted. Pure."""

from __future__ import annotations

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads.drafts import Drafts, drafts


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return what is wrong with the speculative decoding of both roles; only vLLM's arguments are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    prefill, decode = _asked(cr)
    found = {}
    if prefill.layers != decode.layers and (prefill.have_kv or decode.have_kv):
        other = decode if decode.field.startswith("spec.decode.") or not prefill.field else prefill
        remedy = (
            "write it into spec.engine.args, alike for both roles: layers that draft have KV too, and NIXL hands KV over only "
            "between engines whose layers are the same"
        )
        found[other.field] = Problem("InvalidArgument", other.field, other.shown, remedy)
    if decode.config and cr.spec.decode.parallelism.balance == contract.BALANCE_ACTIVATIONS:
        remedy = "remove it, or spec.decode.parallelism.balance: the two were never tried together"
        found[decode.field] = Problem("InvalidArgument", decode.field, decode.shown, remedy)
    return list(found.values())


def untried(cr: EldrDeployment, role: str) -> list[str]:
    """Return the method with which counting was not tried; without one vLLM finds it out from the model, and the plugin looks."""
    asked = _asked(cr)[role == "decode"]
    method = str(asked.config.get("method"))
    if method in {"None", *contract.SPECULATION} or method.endswith("_mtp"):  # older names of mtp
        return []
    return [f"{asked.field} ({asked.shown}): counting was tried with {', '.join(contract.SPECULATION)} only"]


def _asked(cr: EldrDeployment) -> list[Drafts]:
    """Return what prefill and decode engines are asked for."""
    engine = ("spec.engine.args", cr.spec.engine.args)
    roles = (("spec.prefill.args", cr.spec.prefill.args), ("spec.decode.args", cr.spec.decode.args))
    return [drafts(engine, role) for role in roles]
