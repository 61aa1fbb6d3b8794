"""Generate with a model and write down which experts each token used. Needs torch.

    python -m eldr_lab.correlation.capture MODEL OUT.npz [--tokens N] [--temperature T] [--seed N] < prompts.jsonl

Each line of stdin is ``{"kind": "...", "text": "...", "tokens": N}``: the prompt is the first N tokens of the text. Prompts of equal
length share a batch, so nothing is padded. The file
holds, in the order of the input, ``prefill`` [request, layer, expert] counts of the prompts, ``probability`` and ``logit`` of the same
shape, what the gate said of every expert, summed over the prompt's tokens (softmax over all experts; logits above the token's lowest),
``decode`` [request, step, layer, k] experts of each generated token that was fed back, ``prompt_tokens``, ``kind`` and ``generated``
[request, step + 1].
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eldr_tiny_moe.routers import Tap, choose, top_k_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
BATCH = 32


class Sampler:
    """Picks next tokens; specials and padding of the vocabulary are never picked, so that no text ends early.

    Parameters
    ----------
    temperature : float
        0 is greedy.
    vocabulary : int
        Tokens that have a text.
    seed : int
    """

    def __init__(self, temperature: float, vocabulary: int, seed: int) -> None:
        self._temperature = temperature
        self._vocabulary = vocabulary
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return one token for each row."""
        known = logits[:, : self._vocabulary]
        if self._temperature == 0:
            return known.argmax(dim=-1, keepdim=True)
        odds = (known / self._temperature).softmax(dim=-1)
        return torch.multinomial(odds, 1, generator=self._generator)


def generate(
    model: Any, tap: Tap, prompts: Sequence[Sequence[int]], tokens: int, pick: Sampler
) -> tuple[Ints, Floats, Floats, Ints, Ints]:
    """Return prefill counts, gate probabilities and logits, decode experts and generated ids of prompts of one length."""
    top_k = top_k_of(model.config)
    n = len(prompts)
    with torch.inference_mode():
        output = model(input_ids=torch.tensor(prompts), use_cache=True)
        prefill = []
        by_prompt = [layer.reshape(n, -1, layer.shape[-1]) for layer in tap.scores]
        probability = torch.stack([layer.softmax(dim=-1).sum(dim=1) for layer in by_prompt], dim=1)
        # softmax and choice do not change when a token's logits are moved together
        logit = torch.stack(
            [(layer - layer.amin(dim=-1, keepdim=True)).sum(dim=1) for layer in by_prompt], dim=1
        )
        for layer in tap.scores:
            experts = choose(layer, top_k)[0].reshape(n, -1)
            prefill.append(torch.stack([torch.bincount(row, minlength=layer.shape[-1]) for row in experts]))
        generated = [pick(output.logits[:, -1])]
        decode = []
        while len(generated) < tokens:
            output = model(input_ids=generated[-1], past_key_values=output.past_key_values, use_cache=True)
            decode.append(torch.stack([choose(layer, top_k)[0] for layer in tap.scores], dim=1))
            generated.append(pick(output.logits[:, -1]))
    return (
        torch.stack(prefill, dim=1).numpy(),
        probability.numpy(),
        logit.numpy(),
        torch.stack(decode, dim=1).numpy(),
        torch.cat(generated, dim=1).numpy(),
    )


def batches(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield indices of prompts of equal length, a batch at a time."""
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for i, prompt in enumerate(prompts):
        by_length[len(prompt)].append(i)
    for _, indices in sorted(by_length.items()):
        for start in range(0, len(indices), BATCH):
            yield indices[start : start + BATCH]


def main() -> None:
    """Capture the prompts of stdin."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a Hugging Face model directory")
    parser.add_argument("out", help="the .npz file to write")
    parser.add_argument(
        "--tokens", type=int, default=64, help="tokens to generate for each prompt, at least 2 (default 64)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy, the default")
    parser.add_argument(
        "--vocabulary", type=int, default=4096, help="token ids that may be picked (default 4096)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # steps this small gain nothing from more, and lose everything on a busy machine
    records = [json.loads(line) for line in sys.stdin]
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    prompts = [tokenizer(record["text"])["input_ids"][: record["tokens"]] for record in records]
    for record, prompt in zip(records, prompts, strict=True):
        if len(prompt) < record["tokens"]:
            raise SystemExit(
                f"tokens: a text of kind {record['kind']} has {len(prompt)}, not {record['tokens']}"
            )
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, local_files_only=True
    ).eval()
    pick = Sampler(options.temperature, options.vocabulary, options.seed)
    order: list[int] = []
    parts: list[tuple[Ints, Floats, Floats, Ints, Ints]] = []
    with Tap(model) as tap:
        for indices in batches(prompts):
            parts.append(generate(model, tap, [prompts[i] for i in indices], options.tokens, pick))
            order += indices
    back = np.argsort(order)
    prefill, probability, logit, decode, generated = (
        np.concatenate(part)[back] for part in zip(*parts, strict=True)
    )
    np.savez_compressed(
        options.out,
        prefill=prefill.astype(np.uint32),
        probability=probability.astype(np.float32),
        logit=logit.astype(np.float32),
        decode=decode.astype(np.uint16),
        generated=generated,
        prompt_tokens=np.array([len(p) for p in prompts]),
        kind=np.array([record["kind"] for record in records]),
    )


if __name__ == "__main__":
    main()
