"""Train a small Qwen3-MoE whose experts specialise in kinds of text, and write it as a Hugging Face directory. Needs torch.

    python -m eldr_lab.training.train OUT [--packages FOLDER] [--steps N]

downloads Debian's documentation packages into FOLDER (about 55 MB, kept for the next time), trains a byte-level BPE tokenizer and then
the model. The recipe behind ``model/``: every batch holds all kinds of text, and the balancing loss looks at the whole batch, so
that experts are free to specialise; that loss is small and the learning rate high. The default number of steps is the 10.5 million
tokens that ``model/`` has seen: expect about an hour on two cores. The same texts, versions and number of threads give the same weights.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from eldr_lab.training import training_texts
from eldr_tiny_moe.routers import Tap, choose, top_k_of

Tokens = Mapping[str, npt.NDArray[np.int64]]

WORDS = 4096
EOS, PAD = WORDS, WORDS + 1
SEQUENCES, LENGTH = 16, 128
STEPS = 5127
RATE, WARM_UP, LAST_RATE = 4e-3, 50, 0.05
BALANCE = 0.003
TOKENIZER_BYTES, KIND_TOKENS = 600_000, 1_200_000
"""What the tokenizer, and the model, see of a kind."""


def configuration() -> Qwen3MoeConfig:
    """Return the shape of ``model/``."""
    return Qwen3MoeConfig(
        vocab_size=4160,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=64,
        num_experts_per_tok=4,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        rms_norm_eps=1e-6,
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=None,
    )


def train_tokenizer(texts: Mapping[str, training_texts.Split]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that has seen the same amount of each kind."""

    def documents() -> Iterator[str]:
        for split in texts.values():
            left = TOKENIZER_BYTES
            for document in split.train:
                if left <= 0:
                    break
                left -= len(document.encode())
                yield document

    words = ByteLevelBPETokenizer()
    words.train_from_iterator(documents(), vocab_size=WORDS, min_frequency=2, show_progress=False)
    if words.get_vocab_size() != WORDS:
        raise SystemExit(f"the texts hold only {words.get_vocab_size()} of {WORDS} words: give more text")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(words.to_str()),
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        extra_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    return fast


def encode(documents: Iterator[str], tokenizer: PreTrainedTokenizerFast) -> npt.NDArray[np.int64]:
    """Return the tokens of documents, one after the other, up to ``KIND_TOKENS``."""
    ids: list[int] = []
    for document in documents:
        ids += tokenizer(document)["input_ids"]
        if len(ids) >= KIND_TOKENS:
            break
    return np.array(ids, dtype=np.int64)


def initialise(model: Any) -> None:
    """Draw weights: wide embeddings, experts by their fan-in, everything else as linear layers usually start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            fan_in = parameter.shape[-1]
            if "embed_tokens" in name:
                scale = 0.5
            elif "lm_head" in name:
                scale = 0.02
            elif "experts.gate_up_proj" in name:
                scale = 1 / math.sqrt(fan_in)
            elif "experts.down_proj" in name:
                scale = 0.5 / math.sqrt(fan_in)
            else:
                parameter.uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
                continue
            parameter.normal_(0, scale)


def imbalance(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return the balancing loss of one layer: 1 where all experts get the same share of tokens and of probability."""
    experts, _ = choose(logits, top_k)
    share = torch.bincount(experts.flatten(), minlength=logits.shape[-1]) / experts.numel()
    loss: torch.Tensor = logits.shape[-1] * (share * logits.softmax(dim=-1).mean(dim=0)).sum()
    return loss


def batch(tokens: Tokens, step: int, rng: np.random.Generator) -> torch.Tensor:
    """Return sequences of all kinds in turn."""
    kinds = list(tokens)
    rows = []
    for i in range(SEQUENCES):
        source = tokens[kinds[(step * SEQUENCES + i) % len(kinds)]]
        start = rng.integers(0, len(source) - LENGTH)
        rows.append(source[start : start + LENGTH + 1])
    return torch.from_numpy(np.stack(rows))


def train(model: Any, tokens: Tokens, steps: int, seed: int) -> None:
    """Train in place, and say every 50 steps how it goes."""
    rng = np.random.default_rng(seed)
    top_k = top_k_of(model.config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    began = time.monotonic()
    with Tap(model) as tap:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * (1 - (1 - LAST_RATE) * step / steps)
            x = batch(tokens, step, rng)
            logits = model(input_ids=x[:, :-1], use_cache=False).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
            balance = torch.stack([imbalance(layer, top_k) for layer in tap.scores])
            optimizer.zero_grad()
            (loss + BALANCE * balance.sum()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if (step + 1) % 50 == 0 or step + 1 == steps:
                speed = (step + 1) * SEQUENCES * LENGTH / (time.monotonic() - began)
                print(
                    f"step {step + 1} of {steps}: loss {loss.item():.3f}, imbalance {balance.mean().item():.2f},"
                    f" {speed:.0f} tokens/s",
                    file=sys.stderr,
                    flush=True,
                )


def test_loss(model: Any, tokens: npt.NDArray[np.int64]) -> float:
    """Return the loss on up to 64 sequences of held-out tokens."""
    n = min(64, len(tokens) // (LENGTH + 1))
    x = torch.from_numpy(tokens[: n * (LENGTH + 1)].reshape(n, LENGTH + 1))
    with torch.inference_mode():
        logits = model(input_ids=x[:, :-1], use_cache=False).logits
        return float(functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()))


def main() -> None:
    """Fetch, train, test, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="the model directory to write")
    parser.add_argument(
        "--packages",
        type=Path,
        default=Path.home() / ".cache" / "eldr" / "tiny-moe-texts",
        help="where Debian's packages are unpacked; needs apt-get and dpkg-deb (default ~/.cache/eldr/tiny-moe-texts)",
    )
    parser.add_argument(
        "--no-download", action="store_true", help="use what is already in FOLDER and on the machine"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"steps of {SEQUENCES * LENGTH} tokens (default {STEPS})"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    if not options.no_download:
        training_texts.unpack(options.packages)
    texts = training_texts.load(options.packages, seed=options.seed)
    tokenizer = train_tokenizer(texts)
    tokens = {kind: encode(iter(split.train), tokenizer) for kind, split in texts.items()}
    tokens = {kind: ids for kind, ids in tokens.items() if len(ids) > LENGTH}
    print(", ".join(f"{kind} {len(ids)} tokens" for kind, ids in tokens.items()), file=sys.stderr, flush=True)
    model = Qwen3MoeForCausalLM(configuration())
    initialise(model)
    train(model, tokens, options.steps, options.seed)
    for kind, split in texts.items():
        held_out = encode(iter(split.held_out), tokenizer)
        if len(held_out) > LENGTH:
            print(
                f"{kind}: loss on held-out documents {test_loss(model.eval(), held_out):.2f}", file=sys.stderr
            )
    model.to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
