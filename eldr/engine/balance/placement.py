"""Where EPLB puts experts: by how often a step activates them, instead of by tokens.

A placement by tokens crowds rarely used experts on few ranks, and even the best choice among its replicas can then load more
than no replicas at all. vLLM takes its policy from a table by name, and 0.32 has one name only; ours replaces it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.distributed.eplb.policy import EPLB_POLICIES, DefaultEplbPolicy
from vllm.logger import init_logger

from eldr.engine.balance.packing import activation_weights, spread

logger = init_logger("vllm.eldr")

NAME = "default"


class ActivationPolicy(DefaultEplbPolicy):
    """EPLB's policy with :func:`eldr.engine.balance.packing.spread`: a balanced home for every expert, replicas beside it.

    Attributes
    ----------
    steps : int
        How many times each token of the window was counted, times the steps of the window; subclasses set it.
    """

    steps: int

    @classmethod
    def rebalance_experts_hierarchical(
        cls, weight: np.ndarray, num_physical_experts: int, num_groups: int, num_nodes: int, num_gpus: int
    ) -> np.ndarray:
        """Return which expert each place holds, int64 of shape (L, P), from tokens of shape (L, E).

        Groups and nodes are left out of account: a step waits for its fullest rank wherever that is.
        """
        del num_groups, num_nodes
        active = (activation_weights(layer, cls.steps) for layer in weight)
        return np.stack([spread(one, num_physical_experts, num_gpus) for one in active])


def claim(config: Any) -> None:
    """Have EPLB place experts by activation; before a model's EPLB state is made. May be called several times.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    """
    if issubclass(EPLB_POLICIES[NAME], ActivationPolicy):
        return
    parallel = config.parallel_config
    # ranks that hold the same tokens count them each, unless they share them out for the experts
    counted = 1 if parallel.use_sequence_parallel_moe else parallel.tensor_parallel_size
    steps = parallel.eplb_config.window_size * counted
    EPLB_POLICIES[NAME] = type("ActivationPolicy", (ActivationPolicy,), {"steps": steps})
    logger.info(
        "ELDR: EPLB places experts by how often one of %d steps activates them",
        parallel.eplb_config.window_size,
    )
