"""Widen every expert of a Qwen3-MoE model without changing what it computes. Needs torch and safetensors.

    python -m eldr_lab.steps.widen FOLDER

Gate and up projections get more rows, drawn at random, the down projection as many columns of exact zeros: the new units add 0 to
every sum, so that routing and tokens stay what they were, while reading an expert costs as much more as it is wider. That makes
experts of a small model heavy enough for a step to feel them, as those of a large one are. The same model gives the same
bytes.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

MODEL = Path(__file__).parents[3] / "tiny_moe" / "model"
WIDTH = 2048
_KEPT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_STEP = 32
"""Widths that vLLM's CPU kernels take."""


def widened(weight: torch.Tensor, projection: str, width: int, generator: torch.Generator) -> torch.Tensor:
    """Return an expert's projection with ``width`` intermediate units, the trained ones first.

    Parameters
    ----------
    weight : Tensor
        Shape (intermediate, hidden) of ``gate_proj`` and ``up_proj``, (hidden, intermediate) of ``down_proj``.
    projection : str
        Its name.
    width : int
    generator : torch.Generator
        Of the rows that nobody hears.
    """
    if projection == "down_proj":
        wide = weight.new_zeros(weight.shape[0], width)
        wide[:, : weight.shape[1]] = weight
        return wide
    spread = float(weight.float().std())
    wide = torch.empty(width, weight.shape[1]).normal_(0.0, spread, generator=generator).to(weight.dtype)
    wide[: weight.shape[0]] = weight
    return wide


def widen(model: Path, folder: Path, width: int = WIDTH) -> None:
    """Write the widened model; the folder is complete or not there.

    Raises
    ------
    ValueError
        If the width is no multiple of 32 above the model's.
    """
    config = json.loads((model / "config.json").read_text())
    least = config["moe_intermediate_size"]
    if width <= least or width % _STEP:
        raise ValueError(f"width: expected a multiple of {_STEP} above {least}, got {width}")
    generator = torch.Generator().manual_seed(0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        half = Path(name) / folder.name
        half.mkdir()
        tensors = {}
        with safe_open(model / "model.safetensors", "pt") as file:
            for key in sorted(file.keys()):
                weight, projection = file.get_tensor(key), key.split(".")[-2]
                expert = ".mlp.experts." in key
                tensors[key] = widened(weight, projection, width, generator) if expert else weight
        save_file(tensors, half / "model.safetensors", {"format": "pt"})
        text = json.dumps(config | {"moe_intermediate_size": width}, indent=2)
        (half / "config.json").write_text(text + "\n")
        for kept in _KEPT:
            if (model / kept).exists():
                shutil.copyfile(model / kept, half / kept)
        half.replace(folder)


if __name__ == "__main__":
    widen(MODEL, Path(sys.argv[1]))
