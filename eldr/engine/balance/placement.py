"""Where EPLB puts experts: by how often a step activates them, instead of by tokens.

A placement by tokens crowds rarely used experts on few ranks, and even the best choice among its replicas can then load more
than no replicas at all. Without replicas it deals the experts that the engine's own requests use out to the ranks, as ELDR's
large deployment does once for the cluster of each engine [1]_. vLLM takes its policy from a table by name, and 0.32 knows one
name only; ours stands there instead.

References
----------
.. [1] ELDR, arXiv 2607.00466, the expert-parallel setup of Qwen3-235B.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.distributed.eplb.policy import EPLB_POLICIES, DefaultEplbPolicy
from vllm.logger import init_logger

from eldr.contract import ENV_BALANCE
from eldr.engine.balance.packing import activation_weights, spread
from eldr.engine.errors import UnsupportedEngineError

logger = init_logger("vllm.eldr")

NAME = "default"
WORTH_MOVING = 0.02
"""Experts that the fullest rank activates, less by so much of them, are worth moving weights for; windows differ by chance, too."""


class ActivationPolicy(DefaultEplbPolicy):
    """EPLB's policy with :func:`eldr.engine.balance.packing.spread`: a balanced home for every expert, replicas beside it.

    Attributes
    ----------
    steps : int
        How many times each token of the window was counted, times the steps of the window; subclasses say.
    """

    steps: int

    @classmethod
    def rebalance_experts(  # noqa: PLR0917 - vLLM calls it so
        cls,
        weight: torch.Tensor,
        num_replicas: int,
        num_groups: int,
        num_nodes: int,
        num_ranks: int,
        old_global_expert_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return which expert each place holds, int64 of shape (L, P); vLLM's entry point.

        Without replicas a layer stays as it is unless the fullest rank gains by :data:`WORTH_MOVING`.
        """
        old = old_global_expert_indices
        found = super().rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_ranks, old)
        if old is None or num_replicas != weight.shape[1] or old.shape != found.shape:
            return found
        active = torch.from_numpy(cls._active(weight.numpy()))
        fullest, before = (_fullest(active, places.long(), num_ranks) for places in (found, old))
        return torch.where(fullest < (1 - WORTH_MOVING) * before, found, old.to(found.dtype))

    @classmethod
    def rebalance_experts_hierarchical(
        cls, weight: np.ndarray, num_physical_experts: int, num_groups: int, num_nodes: int, num_gpus: int
    ) -> np.ndarray:
        """Return which expert each place holds, int64 of shape (L, P), from tokens of shape (L, E).

        Groups and nodes are left out of account: a step waits for its fullest rank wherever that is.
        """
        del num_groups, num_nodes
        return np.stack([spread(active, num_physical_experts, num_gpus) for active in cls._active(weight)])

    @classmethod
    def _active(cls, tokens: np.ndarray) -> np.ndarray:
        """Return how often a step activates each expert, float64 of shape (L, E), from tokens of that shape."""
        return np.stack([activation_weights(layer, cls.steps) for layer in tokens])


def _fullest(active: torch.Tensor, places: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the mean experts that the fullest rank activates, of shape (L, 1), where every expert has one place."""
    by_rank = active.gather(1, places).reshape(len(places), ranks, -1).sum(dim=2)
    return by_rank.amax(dim=1, keepdim=True)


def claim(config: Any) -> None:
    """Have EPLB place experts by activation; before a model's EPLB state is made. May be called several times.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Raises
    ------
    UnsupportedEngineError
        If another plug-in has put a policy of its own there.
    """
    owner = EPLB_POLICIES[NAME]
    if issubclass(owner, ActivationPolicy):
        return
    if owner is not DefaultEplbPolicy:
        raise UnsupportedEngineError(
            f"{ENV_BALANCE}: {owner.__module__}.{owner.__name__} has replaced vLLM's EPLB policy; leave one of the two plug-ins out of "
            f"VLLM_PLUGINS, or unset {ENV_BALANCE}"
        )
    parallel = config.parallel_config
    # ranks that hold the same tokens count them each, unless they share them out for the experts
    counted = 1 if parallel.use_sequence_parallel_moe else parallel.tensor_parallel_size
    steps = parallel.eplb_config.window_size * counted
    EPLB_POLICIES[NAME] = type("ActivationPolicy", (ActivationPolicy,), {"steps": steps})
    logger.info(
        "ELDR: EPLB places experts by how often one of %d steps activates them",
        parallel.eplb_config.window_size,
    )
