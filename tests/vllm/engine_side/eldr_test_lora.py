"""Write a random adapter (LoRA) of a model's attention as PEFT stores it, and the model with the adapter added to its weights.

python eldr_test_lora.py MODEL ADAPTER MERGED SEED
"""

import json
import shutil
import sys
from pathlib import Path

import safetensors.torch
import torch

TARGETS = ("q_proj", "v_proj")
RANK = 8
SCALE = 0.15
"""Enough for other experts and other answers."""


def main() -> None:
    """Write both."""
    model, adapter, merged = (Path(argument) for argument in sys.argv[1:4])
    random = torch.Generator().manual_seed(int(sys.argv[4]))
    weights = safetensors.torch.load_file(model / "model.safetensors")
    parts = {}
    for name in sorted(weights):
        layer, _, kind = name.removesuffix(".weight").rpartition(".")
        if kind not in TARGETS:
            continue
        out, width = weights[name].shape
        down = SCALE * torch.randn(RANK, width, generator=random)
        up = SCALE * torch.randn(out, RANK, generator=random)
        parts[f"base_model.model.{layer}.{kind}.lora_A.weight"] = down
        parts[f"base_model.model.{layer}.{kind}.lora_B.weight"] = up
        weights[name] = weights[name] + up @ down
    adapter.mkdir(parents=True)
    safetensors.torch.save_file(parts, adapter / "adapter_model.safetensors")
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
    (adapter / "adapter_config.json").write_text(json.dumps(told))
    shutil.copytree(model, merged)
    safetensors.torch.save_file(weights, merged / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
