"""What the routers of a mixture-of-experts model decide. Needs torch.

A *plain* router takes the experts of the k highest logits: Qwen3-MoE and Qwen3-Next the top k of softmax(logits), GPT-OSS the top k of
the logits (with a bias) before its softmax, Gemma 4 the top k of softmax(logits) where the logits come from a normalised and
scaled hidden state and where the per-expert scale multiplies the weights only after the choice. Softmax keeps the order, so the
top k of the logits is the choice of all of them.

A *grouped* router (DeepSeek-V3, Kimi-K2, GLM-4.5) takes those of the k highest scores, sigmoid(logit) + bias, within the groups of
experts whose two best scores have the highest sums; weights have no bias. Transformers computes it in float32, whatever the model's type
is. It is computed here in the model's own type, and replaces what the router says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling

ROUTERS = re.compile(r"layers\.(\d+)\.(?:mlp\.gate|mlp\.router|router\.proj)$")
"""Modules that give router logits, or a tuple that starts with them."""
BIAS = "e_score_correction_bias"
Swap = tuple[int, int, Sequence[int], Sequence[int]]


class Groups(NamedTuple):
    """Which groups of experts a router chooses from: some of so many."""

    kept: int = 1
    all: int = 1


ONE_GROUP = Groups()


class Tap:
    """Keeps by which scores each layer chose its experts in the last forward pass.

    Parameters
    ----------
    model : transformers model

    Attributes
    ----------
    scores : list of Tensor, shape (n_tokens, n_experts)
        One a layer, in the order of the layers: logits, or biased sigmoids of grouped routers.
    groups : Groups
        Of every layer.
    swaps : sequence of (position, layer, experts, experts)
        Experts that change places in a router's decision, from the next pass on; ``scores`` are those before that.

    Raises
    ------
    ValueError
        If the model has no router of a known family.
    """

    def __init__(self, model: Any) -> None:
        found = sorted(
            (
                (int(match[1]), module)
                for name, module in model.named_modules()
                if (match := ROUTERS.search(name))
            ),
            key=lambda one: one[0],
        )
        if not found:
            raise ValueError(f"model: no known router in {type(model).__name__}; extend ROUTERS for it")
        self.scores: list[torch.Tensor] = [torch.empty(0)] * len(found)
        self.swaps: Sequence[Swap] = ()
        grouped = hasattr(found[0][1], BIAS)
        self.groups = Groups(found[0][1].topk_group, found[0][1].num_group) if grouped else ONE_GROUP
        hook = self._grouped if grouped else self._plain
        self._handles = [module.register_forward_hook(hook(i)) for i, (_, module) in enumerate(found)]

    def _plain(self, layer: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> Any:
            parts = output if isinstance(output, tuple) else (output,)
            n_experts = parts[0].shape[-1]
            self.scores[layer] = parts[0].reshape(-1, n_experts)
            if not self.swaps:
                return None
            parts = tuple(
                part
                if part.is_floating_point() and part.shape[-1] != n_experts
                else self.swapped(part, layer)
                for part in parts
            )
            return parts if isinstance(output, tuple) else parts[0]

        return hook

    def _grouped(self, layer: int) -> Any:
        def hook(module: Any, inputs: Any, _output: Any) -> Any:
            hidden = inputs[0].reshape(-1, module.hidden_dim)
            logits = F.linear(hidden, module.weight.to(hidden.dtype))
            weights = logits.sigmoid()
            self.scores[layer] = weights + getattr(module, BIAS)
            experts = self.swapped(choose(self.scores[layer], module.top_k, self.groups)[0], layer)
            weights = weights.gather(1, experts)
            if module.norm_topk_prob:
                weights = weights / weights.sum(dim=-1, keepdim=True)
            return logits, weights * module.routed_scaling_factor, experts

        return hook

    def swapped(self, part: torch.Tensor, layer: int) -> torch.Tensor:
        """Return what a router says, experts or a number for each of them, with this layer's swaps made."""
        part = part.clone()
        rows = part.view(-1, part.shape[-1])
        for position, where, ours, others in self.swaps:
            for one, other in zip(ours, others, strict=True) if where == layer else ():
                row = rows[position]
                if part.is_floating_point():
                    row[[one, other]] = row[[other, one]]
                else:
                    row[:] = torch.where(row == one, other, torch.where(row == other, one, row))
        return part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()


def _sorted(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's values and their places, the highest first, equal ones by place."""
    values, places = torch.sort(scores.double(), dim=-1, descending=True, stable=True)
    return values, places


def _only(scores: torch.Tensor, groups: torch.Tensor, n_groups: int) -> torch.Tensor:
    """Return each row's scores where its groups are, and else minus infinity."""
    kept = torch.zeros(len(scores), n_groups, dtype=torch.bool).scatter_(1, groups, value=True)
    return scores.masked_fill(~kept.repeat_interleave(scores.shape[-1] // n_groups, dim=1), -torch.inf)


def _ranked_groups(scores: torch.Tensor, groups: Groups) -> tuple[torch.Tensor, torch.Tensor]:
    """Return by row the groups' sums of their two best scores and their places, the highest first."""
    return _sorted(scores.double().view(len(scores), groups.all, -1).topk(2, dim=-1).values.sum(dim=-1))


def choose(scores: torch.Tensor, top_k: int, groups: Groups = ONE_GROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the chosen experts of each token, equal scores won by the lower index, and how clear the choice was.

    Returns
    -------
    experts : Tensor of int, shape (n_tokens, top_k)
    gap : Tensor, shape (n_tokens,)
        The last chosen score minus the first one not chosen, of experts in the chosen groups or of groups: near 0, another
        implementation may choose otherwise.
    """
    between = torch.tensor(torch.inf)
    if groups.kept < groups.all:
        sums, order = _ranked_groups(scores, groups)
        scores = _only(scores, order[:, : groups.kept], groups.all)
        between = sums[:, groups.kept - 1] - sums[:, groups.kept]
    ordered, experts = _sorted(scores)
    return experts[:, :top_k], torch.minimum(ordered[:, top_k - 1] - ordered[:, top_k], between)


Near = tuple[int, list[int], list[int], float]
"""Token, chosen experts, those that would take their places, and the distance."""


def near_ties(
    scores: torch.Tensor, tolerance: torch.Tensor, top_k: int, groups: Groups = ONE_GROUP
) -> list[Near]:
    """Return what each token's choice may be otherwise, where scores are closer than the token's tolerance.

    Two experts may change places; so may two groups, whose sums of two scores are twice as uncertain: then all experts that
    this changes.
    """
    found: list[Near] = []
    if groups.kept < groups.all:
        sums, order = _ranked_groups(scores, groups)
        gaps = sums[:, : groups.kept, None] - sums[:, None, groups.kept :]
        for token, a, b in (gaps < 2 * tolerance[:, None, None]).nonzero().tolist():
            others = order[token : token + 1, : groups.kept].clone()
            others[0, a] = order[token, groups.kept + b]
            chosen, instead = (
                set(_sorted(_only(scores[token : token + 1], kept, groups.all))[1][0, :top_k].tolist())
                for kept in (order[token : token + 1, : groups.kept], others)
            )
            if chosen != instead:
                pair = sorted(chosen - instead), sorted(instead - chosen)
                found.append((token, *pair, float(gaps[token, a, b])))
        scores = _only(scores, order[:, : groups.kept], groups.all)
    ordered, experts = _sorted(scores)
    gaps = ordered[:, :top_k, None] - ordered[:, None, top_k:]
    for token, a, b in (gaps < tolerance[:, None, None]).nonzero().tolist():
        pair = [int(experts[token, a])], [int(experts[token, top_k + b])]
        found.append((token, *pair, float(gaps[token, a, b])))
    return found


def top_k_of(config: Any) -> int:
    """Return how many experts a token uses."""
    for name in ("num_experts_per_tok", "top_k_experts"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise ValueError(f"config: {config.model_type} names no top k; extend top_k_of for it")
