"""How much memory the plug-in's tables take beside the KV cache, computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """What decides how much the counts weigh beside a rank's KV cache; ``size`` is bytes per value, ``block`` tokens."""

    name: str
    layers: int
    moe_layers: int
    experts: int
    kv_heads: int
    head: int
    size: int = 2
    block: int = 16

    def row(self) -> str:
        """Return a line of the table."""
        table = self.moe_layers * self.experts
        kv = self.layers * 2 * self.kv_heads * self.head * self.size * self.block
        return f"| {self.name} | {table / 1024:.2f} KiB | {kv / 1024:.0f} KiB | {100 * table / kv:.2f} % |"


MODELS = (
    Model("tiny-moe of this repository, float32", 4, 4, 64, 2, 32, size=4, block=32),
    Model("Qwen3-30B-A3B, bfloat16", 48, 48, 128, 4, 128),
    Model("Qwen3-30B-A3B, bfloat16, --block-size=128", 48, 48, 128, 4, 128, block=128),
    Model("Qwen3-235B-A22B, bfloat16", 94, 94, 128, 4, 128),
    Model("Qwen3-235B-A22B, bfloat16, first of 4 or 8 ranks", 94, 94, 128, 1, 128),
    Model("GPT-OSS-120B, bfloat16, full-attention layers only", 18, 36, 128, 8, 64),
)


def memory() -> list[str]:
    """Return the lines of the page."""
    return [
        "## Memory",
        "",
        "Prefill engines keep MoE layers x experts bytes per KV block, next to layers x 2 x KV heads x head size x bytes x block size. With",
        "tensor parallelism the first rank keeps all of it, beside its own share of the KV cache:",
        "",
        "| model | table per block | KV per block | share |",
        "|---|---|---|---|",
        *(model.row() for model in MODELS),
        "",
        "Every engine keeps 2 x `max_num_seqs` rows of MoE layers x experts x 4 bytes (12 MiB for Qwen3-30B-A3B and 256 requests).",
        "1024 finished requests are in `/dev/shm`: 17 KiB each, with `kv_producer` 33 KiB.",
        "",
    ]
