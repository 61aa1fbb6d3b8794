"""The choice of kernels that route inside themselves, made again from the logits that they get.

Softmax and sigmoid keep the order of logits, so the top-k of the logits is the kernel's choice, *up to ties of the k-th
logit*: bfloat16 logits tie there in some percent of the tokens, and then a kernel takes either expert. Ties are broken
here as the sources of the known kernels do it, which has not been compared with their results on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.logger import init_logger

from eldr.engine.counting import Counting

logger = init_logger("vllm.eldr")

HIGHEST_FIRST = frozenset({"AiterW4A8ExpertsMonolithic", "AiterW4A16ExpertsMonolithic"})
"""Kernels that sort by (logit, expert). Triton's own sort by (logit, -expert), and so by its name do unknown ones."""


def recompute(
    runner: Any, capture: Callable[[torch.Tensor | None, int], None], kernel: str, counting: Counting
) -> None:
    """Capture the choice of a layer's monolithic kernel, right before it runs.

    Parameters
    ----------
    runner : MoERunner
        The layer; its router is a plain top-k.
    capture : callable
        Takes the ids, of shape (tokens, top_k), and the number of tokens; called without ids where there are none, as other
        ranks may wait for this one.
    counting : Counting
        Stopped where that fails; the kernel runs all the same.
    """
    routed, top_k = runner.routed_experts, runner.router.top_k
    inner, highest_first = routed.forward_monolithic, kernel in HIGHEST_FIRST

    def forward_monolithic(x: Any, router_logits: Any = None, input_ids: Any = None) -> Any:
        ids, rows = None, 0
        with counting:
            rows = len(router_logits)
            ids = chosen(router_logits, top_k, highest_first=highest_first)
        capture(ids, rows)
        return inner(x=x, router_logits=router_logits, input_ids=input_ids)

    routed.forward_monolithic = forward_monolithic
    logger.info("ELDR: layer %d routes inside its kernel; its choice is recomputed", runner.layer_id)


def chosen(logits: torch.Tensor, top_k: int, *, highest_first: bool = False) -> torch.Tensor:
    """Return the experts with the highest logits; ``Tensor.topk`` leaves open which of equal ones it takes.

    Parameters
    ----------
    logits : Tensor, shape (T, E)
    highest_first : bool
        Which of equal ones: those with the highest number, else those with the lowest.

    Returns
    -------
    Tensor of int64, shape (T, top_k)
    """
    if highest_first:
        order = logits.flip(-1).sort(dim=-1, descending=True, stable=True).indices
        return logits.shape[-1] - 1 - order[:, :top_k]
    return logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
