"""The independent reference for exactness: expert counts of a model, computed with transformers in float64. Needs torch.

    python -m eldr_tiny_moe.reference MODEL

prints ``{"ready": true, "layers": L, "experts": E, "top_k": K}`` and then answers each line of stdin, a JSON object, by one line:

``{"prompt": [ids], "generated": [ids], "positions": [...], "swaps": [...], "images": [...]}``, all but the first optional, with ``{"prefill": [[...]],
"decode": [[...]], "router_gaps": [[...], ...], "ties": [[position, layer, chosen, rejected, gap], ...],
"next": [[token, second token, gap, tolerance], ...]}`` where

- ``prefill`` and ``decode`` are ``[layer][expert]`` counts of the prompt's N positions and of positions N .. N+G-2: the last of the
  G generated tokens is never fed back,
- ``router_gaps`` are, for each of the N+G-1 positions and each layer, the distances between the scores of the last chosen and the
  first rejected expert, or group of experts (a score is a logit, or what ``routers`` says of grouped routers),
- ``ties`` are the choices that float32 may make otherwise: ``chosen`` and ``rejected`` are two experts whose scores are closer than
  the tolerance, or all experts that change with two groups that are as close,
- ``next`` holds, for each of ``positions``, the two most likely next tokens, the distance of their logits and its tolerance,
- ``swaps`` are ``[position, layer, chosen, rejected]``: choices to make otherwise, with all that follows from them,
- ``images`` are ``data:`` URLs, for models that see; the prompt holds the tokens that stand for them.

What rounding can change depends on the model, the depth of the layer and the text, so it is measured: the same tokens are computed
in float32 as well. The tolerance is :data:`SAFETY` times the error that float32 made in the scores of this token, or on average in
those of all tokens, whichever is larger.

A request that cannot be answered gets ``{"error": "..."}``; the process goes on. It ends with its stdin.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TextIO

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from eldr_tiny_moe.routers import Tap, choose, near_ties, top_k_of
from eldr_tiny_moe.vision import Eyes, sees

SAFETY = 8.0
"""In 999 of 1,000 tokens the error of another order of summation was up to 2.3 times the one measured here (AVX2, chunks, threads; 4.5
times with SSE alone), and a distance has the errors of two logits."""


class Reference:
    """A model and what its routers decide.

    Parameters
    ----------
    folder : str
        A Hugging Face model directory.
    """

    def __init__(self, folder: str) -> None:
        self._exact, self._single = (_load(folder, dtype) for dtype in (torch.float64, torch.float32))
        config = self._exact[0].config
        text = config.get_text_config()
        self.top_k = top_k_of(text)
        self.vocabulary = int(text.vocab_size)
        self._eyes = Eyes(folder, config.image_token_id) if sees(config) else None

    def hello(self) -> dict[str, Any]:
        """Return the model's shape, learnt from one token."""
        _forward(self._exact, [0])
        scores = self._exact[1].scores
        return {
            "ready": True,
            "layers": len(scores),
            "experts": scores[0].shape[-1],
            "top_k": self.top_k,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the counts of one request, see the module."""
        prompt = self._ids(request, "prompt")
        generated = self._ids(request, "generated")
        if not prompt:
            raise ValueError("prompt: expected at least one token id")
        ids = prompt + generated[:-1]
        positions = request.get("positions", [])
        if not all(isinstance(p, int) and 0 <= p < len(ids) for p in positions):
            raise ValueError(f"positions: expected integers in 0..{len(ids) - 1}, got {positions}")
        for _, tap in (self._exact, self._single):
            tap.swaps = request.get("swaps", [])
        images = request.get("images", [])
        if images and self._eyes is None:
            raise ValueError("images: this model sees none")
        seen = self._eyes.inputs(ids, images) if self._eyes else {}
        logits, rounded = (_forward(each, ids, positions, seen) for each in (self._exact, self._single))
        prefill, decode, gaps, ties = [], [], [], []
        tap = self._exact[1]
        for number, (layer, other) in enumerate(zip(tap.scores, self._single[1].scores, strict=True)):
            experts, gap = choose(layer, self.top_k, tap.groups)
            experts = tap.swapped(experts, number)
            prefill.append(_count(experts[: len(prompt)], layer.shape[-1]))
            decode.append(_count(experts[len(prompt) :], layer.shape[-1]))
            gaps.append(gap)
            near = near_ties(layer, _tolerance(layer, other), self.top_k, tap.groups)
            ties += [(position, number, *rest) for position, *rest in near]
        return {
            "prefill": prefill,
            "decode": decode,
            "router_gaps": torch.stack(gaps).T.tolist(),
            "ties": ties,
            "next": _next(logits, rounded) if positions else [],
        }

    def _ids(self, request: dict[str, Any], field: str) -> list[int]:
        ids = request.get(field, [])
        if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i < self.vocabulary for i in ids):
            raise ValueError(f"{field}: expected a list of token ids below {self.vocabulary}")
        return ids


def _load(folder: str, dtype: torch.dtype) -> tuple[Any, Tap]:
    # the grouped matrix product of the default has no float64
    options = {"dtype": dtype, "experts_implementation": "eager", "local_files_only": True}
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    kind = AutoModelForImageTextToText if sees(config) else AutoModelForCausalLM
    model = kind.from_pretrained(folder, **options).eval()
    return model, Tap(model)


def _forward(
    model: tuple[Any, Tap],
    ids: Sequence[int],
    positions: Sequence[int] = (0,),
    seen: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> torch.Tensor:
    """Return the logits of these positions alone: a large vocabulary makes those of all positions large."""
    kept = torch.tensor(positions, dtype=torch.int64)
    with torch.inference_mode():
        logits: torch.Tensor = model[0](
            input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=kept, **seen
        ).logits[0]
    return logits


def _tolerance(exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return, by row, how close two logits may be for float32 to order them otherwise."""
    error = (exact - rounded).abs().amax(dim=-1)
    return SAFETY * error.clamp(min=float(error.mean()))


def _count(experts: torch.Tensor, n_experts: int) -> list[int]:
    counts: list[int] = torch.bincount(experts.flatten(), minlength=n_experts).tolist()
    return counts


def _next(logits: torch.Tensor, rounded: torch.Tensor) -> list[list[float]]:
    top = torch.topk(logits, 2)
    gaps = (top.values[:, 0] - top.values[:, 1]).tolist()
    rows = zip(top.indices.tolist(), gaps, _tolerance(logits, rounded).tolist(), strict=True)
    return [[*tokens, gap, tolerance] for tokens, gap, tolerance in rows]


def serve(reference: Reference, requests: TextIO, answers: TextIO) -> None:
    """Answer lines until there are no more."""
    print(json.dumps(reference.hello()), file=answers, flush=True)
    for line in requests:
        try:
            answer = reference.answer(json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Serve on stdin and stdout; whatever libraries print goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a Hugging Face model directory")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(options.threads)
    serve(Reference(options.model), sys.stdin, answers)


if __name__ == "__main__":
    main()
