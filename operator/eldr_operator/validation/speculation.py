"""Speculative decoding among the arguments for vLLM: what both roles must share, and with which methods nothing is counted. Pure."""

from __future__ import annotations

import re

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads.drafts import Drafts, drafts
from eldr_operator.workloads.images import VLLM

_DRAFTS_FIRST = re.compile(r":v?0\.3[12](\D|$)")
_NO_FULL_GRAPHS = re.compile(r"cudagraph_mode\W+(PIECEWISE|NONE)|--enforce-eager")


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return what is wrong with the speculative decoding of both roles; only vLLM's arguments are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    prefill, decode = _asked(cr)
    invalid = {}
    if prefill.layers != decode.layers and (prefill.have_kv or decode.have_kv):
        other = decode if decode.field.startswith("spec.decode.") or not prefill.field else prefill
        remedy = (
            "write it into spec.engine.args, alike for both roles: layers that draft have KV too, and NIXL hands KV over only "
            "between engines whose layers are the same"
        )
        invalid[other.field] = Problem("InvalidArgument", other.field, other.shown, remedy)
    if decode.config and cr.spec.decode.parallelism.balance == contract.BALANCE_ACTIVATIONS:
        remedy = "remove it, or spec.decode.parallelism.balance: the two were never tried together"
        invalid[decode.field] = Problem("InvalidArgument", decode.field, decode.shown, remedy)
    return list(invalid.values())


def untried(cr: EldrDeployment, role: str) -> list[str]:
    """Return the method with which counting was not tried; without one vLLM finds it out from the model, and the plugin looks."""
    asked = _asked(cr)[role == "decode"]
    method = str(asked.config.get("method"))
    if method in {"None", *contract.SPECULATION} or asked.is_mtp:
        return _full_graphs(cr, role, asked)
    return [f"{asked.field} ({asked.shown}): counting was tried with {', '.join(contract.SPECULATION)} only"]


def _full_graphs(cr: EldrDeployment, role: str, asked: Drafts) -> list[str]:
    """Return why drafts are not counted: up to vLLM 0.32 they hide where the tokens of a full graph lie."""
    engine, spec = cr.spec.engine, getattr(cr.spec, role)
    text = " ".join((*engine.args, *spec.args))
    if not asked.have_kv or not spec.gpus or not _DRAFTS_FIRST.search(engine.image or VLLM):
        return []
    variables = {one.get("name"): one.get("value") for one in (*engine.env, *spec.env)}
    if _NO_FULL_GRAPHS.search(text) or variables.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        return []
    why = "vLLM 0.31 and 0.32 count it with piecewise graphs only: add --compilation-config.cudagraph_mode=PIECEWISE, or use vLLM 0.33"
    return [f"{asked.field} ({asked.shown}): {why}"]


def _asked(cr: EldrDeployment) -> list[Drafts]:
    """Return what prefill and decode engines are asked for."""
    engine = ("spec.engine.args", cr.spec.engine.args)
    roles = (("spec.prefill.args", cr.spec.prefill.args), ("spec.decode.args", cr.spec.decode.args))
    return [drafts(engine, role) for role in roles]
