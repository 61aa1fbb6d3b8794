"""Models that also see: what ``variants`` writes of them, and what the reference gives them. Needs torch and torchvision.

Engines read images through a processor whose settings lie beside the model, so that is written, too. The chat template puts an
image where the chat has it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from PIL import Image

QWEN = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
"""What the tokenizer gets besides its own, in the order of their ids."""
GEMMA = {
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "audio_token": "<|audio|>",
}
SQUARES = {
    "patch_size": 16,
    "merge_size": 2,
    # pixels; smaller and larger images are scaled
    "size": {"shortest_edge": 64 * 64, "longest_edge": 512 * 512},
}
"""How Qwen's processor cuts images: 32 pixels a side are a token."""
LEAST_TOKENS = 70
"""To how many tokens at most Gemma 4's processor scales any image; it takes no fewer."""
CHAT = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}"
    "IMAGE{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
)


def qwen3vlmoe(text: Mapping[str, Any]) -> Any:
    """Return a text model behind a vision tower of 3 layers; two of them also reach into its own first layers.

    Parameters
    ----------
    text : mapping
        Fields of the text model's configuration.
    """
    ids = _ids(QWEN, text)
    text = {
        **_with(ids, text),
        "moe_intermediate_size": 96,  # no side like another: transformers tells by that how weights lie
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            # time, height and width share the frequencies of a head
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 128,
        "patch_size": SQUARES["patch_size"],
        "spatial_merge_size": SQUARES["merge_size"],
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    return transformers.Qwen3VLMoeForConditionalGeneration(
        transformers.Qwen3VLMoeConfig(
            text_config=text,
            vision_config=vision,
            tie_word_embeddings=False,
            **ids,
        )
    )


def gemma4(text: Mapping[str, Any]) -> Any:
    """Return a text model behind a vision tower of 2 layers.

    Tokens of an image attend to what is before them, as in the small models of this family. In the large ones they attend to
    all of the image, which vLLM's attention for CPUs ignores.
    """
    ids = _ids(GEMMA, text)
    text = _with(ids, text)
    ids["eoa_token_index"] = ids.pop("eoa_token_id")
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "position_embedding_size": 128,
        "default_output_length": LEAST_TOKENS,
    }
    return transformers.Gemma4ForConditionalGeneration(
        transformers.Gemma4Config(
            text_config=text,
            vision_config=vision,
            **ids,
        )
    )


def _ids(marks: Mapping[str, str], text: Mapping[str, Any]) -> dict[str, int]:
    return {f"{name}_id": text["vocab_size"] + number for number, name in enumerate(marks)}


def _with(ids: Mapping[str, int], text: Mapping[str, Any]) -> dict[str, Any]:
    return {**text, "vocab_size": text["vocab_size"] + len(ids)}


def sees(config: Any) -> bool:
    """Tell whether a model has a vision tower."""
    return hasattr(config, "vision_config")


def mute(model: Any) -> None:
    """Let a model never say a token that stands for an image: nobody could tell which."""
    with torch.no_grad():
        model.get_output_embeddings().weight[[model.config.image_token_id, model.config.video_token_id]] = 0


def write(model: Any, folder: Path, tokenizer: Path) -> None:
    """Write a model, its tokenizer, chat template, and how images are prepared."""
    model.save_pretrained(folder)
    if model.config.model_type == "qwen3_vl_moe":
        _turn_experts(folder / "model.safetensors")
        processor = _qwen(tokenizer)
    else:
        processor = _gemma(tokenizer)
    processor.save_pretrained(folder)


def _turn_experts(path: Path) -> None:
    """Let weights of experts lie as in the published models, which is how vLLM expects them."""
    weights = {
        name: weight.transpose(1, 2).contiguous() if ".experts." in name else weight
        for name, weight in safetensors.torch.load_file(path).items()
    }
    safetensors.torch.save_file(weights, path, {"format": "pt"})


def _qwen(tokenizer: Path) -> Any:
    return transformers.Qwen3VLProcessor(
        transformers.Qwen2VLImageProcessor(**SQUARES),
        _tokenizer(tokenizer, QWEN),
        transformers.Qwen3VLVideoProcessor(**SQUARES),
        chat_template=CHAT.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )


def _gemma(tokenizer: Path) -> Any:
    return transformers.Gemma4Processor(
        transformers.Gemma4AudioFeatureExtractor(),
        transformers.Gemma4ImageProcessor(max_soft_tokens=LEAST_TOKENS),
        _tokenizer(tokenizer, GEMMA),
        transformers.Gemma4VideoProcessor(),
        chat_template=CHAT.replace("IMAGE", GEMMA["image_token"]),
    )


def _tokenizer(folder: Path, marks: Mapping[str, str]) -> Any:
    found = transformers.AutoTokenizer.from_pretrained(
        folder, extra_special_tokens=marks, local_files_only=True
    )
    assert found.convert_tokens_to_ids([*marks.values()]) == [*range(len(found) - len(marks), len(found))]
    return found


class Eyes:
    """What a model's processor makes of images.

    Parameters
    ----------
    folder : str
        A Hugging Face model directory.
    image_token : int
        Stands in prompts for each token of an image.
    """

    def __init__(self, folder: str, image_token: int) -> None:
        self._prepare = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        self._token = image_token

    def inputs(self, ids: Sequence[int], urls: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return what the model takes besides token ids.

        Parameters
        ----------
        urls : sequence of str
            The prompt's images in turn, as ``data:`` URLs.
        """
        images = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]
        if not images:
            return {}
        found = dict(self._prepare(images, return_tensors="pt"))
        found.pop("num_soft_tokens_per_image", None)  # Gemma 4's processor tells it to itself
        # the model numbers positions by which tokens are an image's
        return found | {"mm_token_type_ids": torch.tensor([ids]).eq(self._token).int()}
