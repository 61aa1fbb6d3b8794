"""vLLM 0.32.0 on a CPU: with expert parallelism both workers die of SIGSEGV in the first forward pass.

    VLLM_CPU_OMP_THREADS_BIND=nobind python expert_parallel_on_cpu.py          # dies
    VLLM_CPU_OMP_THREADS_BIND=nobind python expert_parallel_on_cpu.py --off    # the same with tensor parallelism alone: answers

The model is random and made here; nothing is downloaded.
"""

import json
import sys
import tempfile
from pathlib import Path

from vllm import LLM, SamplingParams

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "torch_dtype": "float32",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=4,
            kv_cache_memory_bytes=64 << 20,
            tensor_parallel_size=2,
            enable_expert_parallel="--off" not in sys.argv[1:],
        )
        prompt = {"prompt_token_ids": list(range(1, 40))}
        (answer,) = llm.generate([prompt], SamplingParams(max_tokens=4, temperature=0.0, detokenize=False))
        print("answered:", answer.outputs[0].token_ids)


if __name__ == "__main__":
    main()
