"""What the routers of a mixture-of-experts model decide. Needs torch.

An expert is chosen by its router logit in all three families: Qwen3-MoE takes the top k of softmax(logits), GPT-OSS the top k of
the logits (with a bias) before its softmax, Gemma 4 the top k of softmax(logits) where the logits come from a normalised and
scaled hidden state and where the per-expert scale multiplies the weights only after the choice. Softmax keeps the order, so the
top k of the logits is the choice of all three.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch

ROUTERS = re.compile(r"layers\.(\d+)\.(?:mlp\.gate|mlp\.router|router\.proj)$")
"""Modules that give router logits, or a tuple that starts with them: Qwen3-MoE, GPT-OSS, Gemma 4."""


class Tap:
    """Keeps each layer's router logits of the last forward pass.

    Parameters
    ----------
    model : transformers model

    Attributes
    ----------
    logits : list of Tensor, shape (n_tokens, n_experts)
        One a layer, in the order of the layers.
    swaps : sequence of (position, layer, expert, expert)
        Experts that change places in a router's decision, from the next pass on.

    Raises
    ------
    ValueError
        If the model has no router of a known family.
    """

    def __init__(self, model: Any) -> None:
        found = sorted(
            (int(match[1]), module)
            for name, module in model.named_modules()
            if (match := ROUTERS.search(name)) is not None
        )
        if not found:
            raise ValueError(f"model: no known router in {type(model).__name__}; extend ROUTERS for it")
        self.logits: list[torch.Tensor] = [torch.empty(0)] * len(found)
        self.swaps: Sequence[tuple[int, int, int, int]] = ()
        self._handles = [module.register_forward_hook(self._keep(i)) for i, (_, module) in enumerate(found)]

    def _keep(self, layer: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> Any:
            parts = output if isinstance(output, tuple) else (output,)
            for position, where, one, other in self.swaps:
                if where == layer:
                    parts = tuple(_swapped(part, parts[0].shape[-1], position, one, other) for part in parts)
            self.logits[layer] = parts[0].reshape(-1, parts[0].shape[-1])
            if not self.swaps:
                return None
            return parts if isinstance(output, tuple) else parts[0]

        return hook

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()


def _swapped(part: torch.Tensor, n_experts: int, position: int, one: int, other: int) -> torch.Tensor:
    """Return logits, weights or indices of a router in which two experts of one token have changed places."""
    part = part.clone()
    row = part.view(-1, part.shape[-1])[position]
    if not part.is_floating_point():
        row[:] = torch.where(row == one, other, torch.where(row == other, one, row))
    elif len(row) == n_experts:
        row[[one, other]] = row[[other, one]]
    return part


def choose(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the chosen experts of each token, equal logits won by the lower index, and how clear the choice was.

    Returns
    -------
    experts : Tensor of int, shape (n_tokens, top_k)
    gap : Tensor, shape (n_tokens,)
        The last chosen logit minus the first one not chosen: near 0, another implementation may choose otherwise.
    """
    ordered, experts = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
    return experts[:, :top_k], ordered[:, top_k - 1] - ordered[:, top_k]


def near_ties(logits: torch.Tensor, tolerance: torch.Tensor, top_k: int) -> list[tuple[int, int, int, float]]:
    """Return token, chosen expert, rejected expert and their distance wherever it is below the token's tolerance."""
    ordered, experts = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
    gaps = ordered[:, :top_k, None] - ordered[:, None, top_k:]
    found = (gaps < tolerance[:, None, None]).nonzero().tolist()
    return [
        (token, int(experts[token, a]), int(experts[token, top_k + b]), float(gaps[token, a, b]))
        for token, a, b in found
    ]


def top_k_of(config: Any) -> int:
    """Return how many experts a token uses."""
    for name in ("num_experts_per_tok", "top_k_experts"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise ValueError(f"config: {config.model_type} names no top k; extend top_k_of for it")
