"""Write what a model makes of token ids before its first layer, as a request's ``prompt_embeds`` carries it.

python eldr_test_embed.py MODEL 300 301 ...
"""

import base64
import io
import sys
from pathlib import Path

import safetensors.torch
import torch


def main() -> None:
    """Read the table of embeddings alone."""
    weights = safetensors.torch.load_file(Path(sys.argv[1]) / "model.safetensors")
    buffer = io.BytesIO()
    torch.save(weights["model.embed_tokens.weight"][[*map(int, sys.argv[2:])]].clone(), buffer)
    sys.stdout.write(base64.b64encode(buffer.getvalue()).decode())


if __name__ == "__main__":
    main()
