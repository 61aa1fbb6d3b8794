"""Write a small random model of one of the known families, for exactness tests, or ``eagle3``, a head that drafts. Needs torch.

    python -m eldr_tiny_moe.variants FAMILY FOLDER [--seed N] [--noise SHARE] [--drafts TOKEN ...] [--heads N]

The same arguments give the same bytes. Hidden sizes are multiples of 32 because vLLM's CPU kernels want that. Weights are drawn
far wider than usual: with the usual ones routing is close to uniform, its choices hang on the last bit, and every greedy text is
the same token over and over.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers

from eldr_tiny_moe import vision
from eldr_tiny_moe.routers import BIAS

TOKENIZER = Path(__file__).parents[1] / "model"
SHARED: Mapping[str, Any] = {
    "vocab_size": 4100,  # every id has a text
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "eos_token_id": 4096,
    "pad_token_id": 4097,
    "bos_token_id": None,
    "tie_word_embeddings": True,
}
UNTIED: Mapping[str, Any] = {**SHARED, "tie_word_embeddings": False}
QWEN3: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
}
GROUPED: Mapping[str, Any] = {
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
GEMMA4: Mapping[str, Any] = {
    **SHARED,
    "head_dim": 64,
    "global_head_dim": 64,
    "num_hidden_layers": 6,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "enable_moe_block": True,
    "num_experts": 16,
    "top_k_experts": 4,
    "sliding_window": 64,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": SHARED["vocab_size"],
}
HARMONY_VOCABULARY = 201_088
"""That of GPT-OSS: vLLM writes chats for this architecture with the ids of its own vocabulary, whatever the tokenizer says."""

WEIGHTS = 0.08
"""Standard deviation of matrices."""

LARGE = 80.0
"""How much larger embeddings are in a model whose heads draft."""


def qwen3moe() -> Any:
    """Return full attention, 4 layers of 32 experts, top 4."""
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **SHARED,
            **QWEN3,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        )
    )


def qwen3vlmoe() -> Any:
    """Return the same behind a vision tower."""
    return vision.qwen3vlmoe({**UNTIED, **QWEN3})


def glm4moe() -> Any:
    """Return a dense layer and 3 of 32 experts beside a shared one: the top 4 by biased scores in 2 of 4 groups."""
    return transformers.Glm4MoeForCausalLM(
        transformers.Glm4MoeConfig(
            **UNTIED,
            **GROUPED,
            num_hidden_layers=4,
            head_dim=32,
            use_qk_norm=True,
        )
    )


def deepseekv3() -> Any:
    """Return the same experts under latent attention (MLA), whose latent has the size that vLLM's kernels know."""
    return transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **{**UNTIED, "num_key_value_heads": 4},
            **GROUPED,
            num_hidden_layers=4,
            q_lora_rank=64,
            kv_lora_rank=512,
            qk_nope_head_dim=32,
            qk_rope_head_dim=64,
            v_head_dim=32,
            # what vLLM reads besides
            topk_method="noaux_tc",
            scoring_func="sigmoid",
        )
    )


def qwen3next() -> Any:
    """Return a hybrid: 3 layers of Gated DeltaNet and one of full attention, 32 experts, top 4, beside a gated shared one."""
    return transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            **UNTIED,
            num_hidden_layers=4,
            head_dim=256,
            # vLLM's kernel for CPUs knows few sizes of heads
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_num_key_heads=1,
            linear_num_value_heads=2,
            intermediate_size=256,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
            num_experts=32,
            num_experts_per_tok=4,
        )
    )


def olmoe() -> Any:
    """Return full attention, 4 layers of 32 experts, top 4, whose weights are not normalised."""
    return transformers.OlmoeForCausalLM(
        transformers.OlmoeConfig(
            **UNTIED,
            num_hidden_layers=4,
            head_dim=32,
            intermediate_size=64,
            num_experts=32,
            num_experts_per_tok=4,
            norm_topk_prob=False,
        )
    )


def gptoss() -> Any:
    """Return a hybrid: 2 sliding-window and 2 full layers in turn, 16 experts, top 4, biased routers."""
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            **{**UNTIED, "vocab_size": HARMONY_VOCABULARY},
            num_hidden_layers=4,
            head_dim=64,
            intermediate_size=64,
            num_local_experts=16,
            num_experts_per_tok=4,
            sliding_window=64,
            rope_scaling=None,
        )
    )


def gemma4() -> Any:
    """Return a hybrid: 5 sliding-window layers and a full one, a dense network beside 16 experts, top 4.

    Its layers have keys and values of one size, so that all KV blocks hold as many tokens.
    """
    return transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**GEMMA4))


def gemma4_split() -> Any:
    """Return the same with Gemma 4's ratio of sizes: the full layer's keys and values are half as wide."""
    heads = {
        "num_key_value_heads": 4,
        "head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
    }
    return transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**{**GEMMA4, **heads}))


def gemma4_vision() -> Any:
    """Return ``gemma4`` behind a vision tower."""
    return vision.gemma4(GEMMA4)


FAMILIES: Mapping[str, Callable[[], Any]] = {
    "qwen3moe": qwen3moe,
    "qwen3vlmoe": qwen3vlmoe,
    "glm4moe": glm4moe,
    "deepseekv3": deepseekv3,
    "qwen3next": qwen3next,
    "olmoe": olmoe,
    "gptoss": gptoss,
    "gemma4": gemma4,
    "gemma4-split": gemma4_split,
    "gemma4-vision": gemma4_vision,
}

BFLOAT16_ONLY = {"qwen3next"}
"""What vLLM's kernels for CPUs compute in no other type."""


def spread(model: Any, generator: torch.Generator) -> None:
    """Draw all weights anew, wide enough that experts are chosen clearly."""
    with torch.no_grad():
        biases = [buffer for name, buffer in model.named_buffers() if name.endswith(BIAS)]
        for bias in biases:
            bias.uniform_(-0.2, 0.2, generator=generator)
        for name, parameter in model.named_parameters():
            if name.endswith("router.proj.weight"):  # its input has length 1, not sqrt(hidden size)
                parameter.normal_(0, 4.0, generator=generator)
            elif biases and name.endswith("mlp.gate.weight"):  # sigmoids of wider logits are all but 0 or 1
                parameter.normal_(0, 0.12, generator=generator)
            elif name.endswith(("gate.weight", "router.weight", "router.bias")):
                parameter.normal_(0, 0.5, generator=generator)
            elif name.endswith(("router.scale", "router.per_expert_scale")):
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif parameter.ndim >= 2:
                parameter.normal_(0, WEIGHTS, generator=generator)


def decide_by_token(model: Any, generator: torch.Generator) -> None:
    """Have each token name its experts, in directions that nothing else writes to: no rounding changes a choice.

    For families that an engine computes in bfloat16 only, where near ties would be everywhere.
    """
    config = model.config
    experts = config.num_experts
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")):
                parameter[..., :experts, :] = 0
            elif name.endswith("mlp.gate.weight"):
                parameter.zero_()
                parameter[torch.arange(experts), torch.randperm(experts, generator=generator)] = 8
        embeddings = model.get_input_embeddings().weight
        named = (
            torch.rand(len(embeddings), experts, generator=generator).topk(config.num_experts_per_tok).indices
        )
        embeddings[:, :experts] = torch.zeros(len(embeddings), experts).scatter_(1, named, 1)


def blur(model: Any, share: float, generator: torch.Generator) -> None:
    """Add noise to all weights, a share of what they are: a model that drafts what the one without noise often says."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty_like(parameter).normal_(0, 1, generator=generator)
            parameter.add_(noise * share * parameter.abs().mean())


def add_heads(folder: Path, n: int, seed: int) -> None:
    """Add layers that predict further tokens (MTP): each is like the model's last layer, with weights of its own.

    A head sees the next token's embedding and little of what the model made of the text so far: where embeddings are large it drafts
    what the model often says.
    """
    generator = torch.Generator().manual_seed(seed)
    file = folder / "model.safetensors"
    saved = safetensors.torch.load_file(file)
    config = json.loads((folder / "config.json").read_text())
    last, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
    like = f"model.layers.{last}."
    own = {name.removeprefix(like): weight for name, weight in saved.items() if name.startswith(like)}
    first = torch.cat(
        (torch.eye(hidden), torch.empty(hidden, hidden).normal_(0, 0.02, generator=generator)), 1
    )
    apart = (
        config["model_type"] == "qwen3_next"
    )  # whose norms are weighted by 1 + w, and whose heads share what surrounds them
    norm = torch.zeros(hidden) if apart else torch.ones(hidden)
    around = {
        "mtp.fc": first,
        "mtp.norm": norm,
        "mtp.pre_fc_norm_hidden": norm,
        "mtp.pre_fc_norm_embedding": norm,
    }
    added = around if apart else {}
    for head in range(n):
        layer = f"mtp.layers.{head}." if apart else f"model.layers.{last + 1 + head}."
        for name, weight in own.items():
            order = torch.randperm(len(weight), generator=generator)
            saved[layer + name] = weight[order].contiguous() if weight.ndim > 1 else weight.clone()
        if not apart:
            added |= {f"{layer}{name}": norm for name in ("enorm", "hnorm", "shared_head.norm")}
            added |= {f"{layer}eh_proj": first, f"{layer}shared_head.head": saved["lm_head.weight"]}
            added[f"{layer}embed_tokens"] = saved["model.embed_tokens.weight"]
    saved |= {f"{name}.weight": weight.to(torch.bfloat16).clone() for name, weight in added.items()}
    safetensors.torch.save_file(saved, file, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": n}))


def write(family: str, folder: Path, seed: int = 0, noise: float = 0.0, heads: int = 0) -> None:
    """Write a model directory with the trained model's tokenizer."""
    torch.manual_seed(seed)
    model = FAMILIES[family]()
    spread(model, torch.Generator().manual_seed(seed))
    if heads:
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(LARGE)
    if family in BFLOAT16_ONLY:
        decide_by_token(model, torch.Generator().manual_seed(seed + 2))
    if noise:
        blur(model, noise, torch.Generator().manual_seed(seed + 1))
    model.to(torch.bfloat16)
    if vision.sees(model.config):
        vision.mute(model)
        vision.write(model, folder, TOKENIZER)
        return
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TOKENIZER / name, folder / name)
    if heads:
        add_heads(folder, heads, seed + 3)


def write_head(folder: Path, seed: int = 0, drafts: Sequence[int] = ()) -> None:
    """Write an EAGLE-3 head for ``qwen3moe``: one dense layer that drafts, from what three layers of that model say.

    Where tokens are named it drafts no others. A request that may have these alone then accepts some, though weights are random.
    """
    vocabulary = len(drafts) or SHARED["vocab_size"]
    config = {
        **SHARED,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "head_dim": 32,
        "intermediate_size": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "draft_vocab_size": vocabulary,
        # where vLLM's model runner V2 looks; V1 also takes them from "eagle_config"
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    hidden, inner, keys = 128, 256, 64
    shapes = {
        "fc": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj": (hidden, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, hidden),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "lm_head": (vocabulary, hidden),
    }
    norms = (
        "norm",
        "midlayer.hidden_norm",
        "midlayer.input_layernorm",
        "midlayer.post_attention_layernorm",
    )
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.empty(shape).normal_(0, WEIGHTS, generator=generator) for name, shape in shapes.items()
    }
    weights |= {name: torch.ones(hidden) for name in norms}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    saved = {f"{name}.weight": weight.to(torch.bfloat16) for name, weight in weights.items()}
    if drafts:  # from an id of the head to one of the model: the difference
        saved["d2t"] = torch.tensor(drafts) - torch.arange(vocabulary)
    safetensors.torch.save_file(saved, folder / "model.safetensors")


def main() -> None:
    """Write the family that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("family", choices=[*sorted(FAMILIES), "eagle3"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--heads", type=int, default=0, metavar="N")
    parser.add_argument("--drafts", type=int, nargs="+", default=(), metavar="TOKEN")
    options = parser.parse_args()
    if options.family == "eagle3":
        write_head(options.folder, options.seed, options.drafts)
    else:
        write(options.family, options.folder, options.seed, options.noise, options.heads)


if __name__ == "__main__":
    main()
