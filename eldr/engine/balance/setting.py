"""Whether an engine balances its ranks by activated experts, and what keeps it from doing so. Plain Python.

vLLM spreads the tokens of an expert over all its replicas, and so wakes more of them than are needed. With
``ELDR_BALANCE=Activations`` every step uses one replica of each expert, chosen so that the rank with most of them has as
few as possible (METRO [1]_), and EPLB places experts to that end.

References
----------
.. [1] METRO, arXiv 2512.09277.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr.contract import BALANCE_ACTIVATIONS, BALANCE_TOKENS, ENV_BALANCE
from eldr.engine.errors import UnsupportedEngineError

TOKENS_PER_EXPERT = 100
"""From so many tokens per expert on computing takes longer than loading the expert's weights, and vLLM's choice stays.

A product of T rows with a matrix of 16-bit weights does T operations per byte of it; an MI300X does about 250 in the time it
loads one, in practice about 100.
"""

MOST_RANKS = 32
"""What the kernel of GPUs takes: a set of ranks is one integer there."""

BACKENDS = (
    "allgather_reducescatter",
    "deepep_high_throughput",
    "deepep_low_latency",
    "deepep_v2",
    "mori_high_throughput",
    "mori_low_latency",
    "nixl_ep",
    "flashinfer_all2allv",
    "flashinfer_nvlink_two_sided",
    "flashinfer_nvlink_one_sided",
)
"""Values of ``--all2all-backend`` that send tokens to their physical expert ids."""


def read(environ: Mapping[str, str]) -> bool:
    """Return whether an environment has replicas chosen by activated experts; ValueError if its value means nothing."""
    balance = environ.get(ENV_BALANCE, BALANCE_TOKENS)
    if balance not in (BALANCE_TOKENS, BALANCE_ACTIVATIONS):
        raise UnsupportedEngineError(
            f"{ENV_BALANCE}: expected {BALANCE_TOKENS} (vLLM's choice of replicas) or {BALANCE_ACTIVATIONS}, got {balance!r}"
        )
    return balance == BALANCE_ACTIVATIONS


def problems(config: Any, *, prompts: bool) -> list[str]:
    """Return why an engine cannot balance activations, or would gain nothing by it; empty if there is no reason.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    prompts : bool
        Whether the engine counts prompts.
    """
    parallel, reasons = config.parallel_config, []
    if prompts:
        reasons.append(
            "kv_role=kv_producer: it was tried on decode engines only, and steps that prefill are bound by computing"
        )
    if not (parallel.enable_eplb and parallel.eplb_config.num_redundant_experts):
        reasons.append(
            "experts have no replicas to choose among, and nothing else is gained: it needs --enable-eplb and, in --eplb-config, "
            "num_redundant_experts of 1 or more; else unset it"
        )
    if parallel.enable_elastic_ep:
        reasons.append(
            "enable_elastic_ep: ranks come and go, and with them the experts' places; leave it off"
        )
    if parallel.enable_fault_tolerance:
        reasons.append("enable_fault_tolerance: a group that lost a rank would go on; leave it off")
    if (backend := parallel.all2all_backend) not in BACKENDS:
        reasons.append(
            f"all2all_backend={backend}: it may send tokens elsewhere than their expert ids say; take {BACKENDS[0]}"
        )
    if config.lora_config is not None:
        reasons.append("LoRA: it wraps the layers that choose replicas; leave it off")
    if config.model_config.enable_sleep_mode:
        reasons.append("enable_sleep_mode: the two were never tried together; leave one of them off")
    if config.speculative_config is not None:
        reasons.append("speculative_config: the two were never tried together; leave one of them off")
    return [f"{ENV_BALANCE}={BALANCE_ACTIVATIONS}: {text}" for text in reasons]


def bound_by_compute(tokens: int, top_k: int, experts: int) -> bool:
    """Return whether a step has so many tokens per expert that vLLM's choice of replicas stays.

    Parameters
    ----------
    tokens : int
        Tokens of the step over the expert-parallel group. All ranks have it, so that all decide alike, and it is fixed for
        each captured graph.
    experts : int
        Logical experts. When not all of them are active, those that are have more tokens: the rule errs towards balancing.
    """
    return tokens * top_k >= TOKENS_PER_EXPERT * experts
