"""How a vLLM engine spreads a model over the ranks of its pod. Pure."""

from __future__ import annotations

import json

from eldr import contract
from eldr_operator.models import DecodeSpec, RoleSpec


def arguments(spec: RoleSpec) -> list[str]:
    """Return vLLM's arguments for it; none for an engine of one rank.

    Parameters
    ----------
    spec : RoleSpec
        Of a role whose ranks, its accelerators, split every layer; decode engines can spread experts instead.
    """
    if not isinstance(spec, DecodeSpec):
        return _tensor(spec.gpus)
    asked = spec.parallelism
    args = _tensor(asked.tensor or spec.gpus // asked.data)
    if asked.data > 1:
        args.append(f"--data-parallel-size={asked.data}")
    if asked.expert == "Enabled":
        args.append("--enable-expert-parallel")
    if asked.redundant_experts:
        # Left unset, vLLM takes NIXL wherever it is installed, as it is here for KV, and registers all weights with it.
        config = {"num_redundant_experts": asked.redundant_experts, "communicator": "torch_gloo"}
        args += ["--enable-eplb", f"--eplb-config={json.dumps(config, separators=(',', ':'))}"]
    return args


def environment(spec: RoleSpec) -> dict[str, str]:
    """Return the variables that say which copy of an expert computes; none where vLLM chooses."""
    if not isinstance(spec, DecodeSpec) or spec.parallelism.balance == contract.BALANCE_TOKENS:
        return {}
    return {contract.ENV_BALANCE: spec.parallelism.balance}


def _tensor(ranks: int) -> list[str]:
    return [f"--tensor-parallel-size={ranks}"] if ranks > 1 else []
