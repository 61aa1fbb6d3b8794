"""The independent reference for exactness: expert counts of a model, computed with transformers in float32. Needs torch.

    python -m eldr_tiny_moe.reference MODEL

prints ``{"ready": true, "layers": L, "experts": E, "top_k": K}`` and then answers each line of stdin, a JSON object, by one line:

``{"prompt": [ids], "generated": [ids], "positions": [...]}``, the last two optional, with ``{"prefill": [[...]], "decode": [[...]],
"router_gaps": [[...], ...], "next": [[token, second token, gap], ...]}`` where

- ``prefill`` and ``decode`` are ``[layer][expert]`` counts of the prompt's N positions and of positions N .. N+G-2: the last of the
  G generated tokens is never fed back,
- ``router_gaps`` are, for each of the N+G-1 positions and each layer, the distances between the last chosen and the first
  rejected router logit: a count that differs from an engine's is a fault only where this is not tiny,
- ``next`` holds, for each of ``positions``, the two most likely next tokens and the distance of their logits.

A request that cannot be answered gets ``{"error": "..."}``; the process goes on. It ends with its stdin.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import torch
from transformers import AutoModelForCausalLM

from eldr_tiny_moe.routers import Tap, choose, top_k_of


class Reference:
    """A model and what its routers decide.

    Parameters
    ----------
    folder : str
        A Hugging Face model directory.
    """

    def __init__(self, folder: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        ).eval()
        self.top_k = top_k_of(self.model.config)
        self.vocabulary = int(self.model.config.vocab_size)
        self.tap = Tap(self.model)

    def hello(self) -> dict[str, Any]:
        """Return the model's shape, learnt from one token."""
        self._forward([0])
        return {
            "ready": True,
            "layers": len(self.tap.logits),
            "experts": self.tap.logits[0].shape[-1],
            "top_k": self.top_k,
        }

    def _forward(self, ids: Sequence[int], positions: Sequence[int] = (0,)) -> torch.Tensor:
        """Return the logits of these positions alone: a large vocabulary makes those of all positions large."""
        kept = torch.tensor(positions, dtype=torch.int64)
        with torch.inference_mode():
            logits: torch.Tensor = self.model(
                input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=kept
            ).logits[0]
        return logits

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
        logits = self._forward(ids, positions)
        prefill, decode, gaps = [], [], []
        for layer in self.tap.logits:
            experts, gap = choose(layer, self.top_k)
            prefill.append(_count(experts[: len(prompt)], layer.shape[-1]))
            decode.append(_count(experts[len(prompt) :], layer.shape[-1]))
            gaps.append(gap)
        return {
            "prefill": prefill,
            "decode": decode,
            "router_gaps": torch.stack(gaps).T.tolist(),
            "next": [_next(row) for row in logits],
        }

    def _ids(self, request: dict[str, Any], field: str) -> list[int]:
        ids = request.get(field, [])
        if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i < self.vocabulary for i in ids):
            raise ValueError(f"{field}: expected a list of token ids below {self.vocabulary}")
        return ids


def _count(experts: torch.Tensor, n_experts: int) -> list[int]:
    counts: list[int] = torch.bincount(experts.flatten(), minlength=n_experts).tolist()
    return counts


def _next(logits: torch.Tensor) -> list[float]:
    top = torch.topk(logits.double(), 2)
    return [*top.indices.tolist(), float(top.values[0] - top.values[1])]


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
