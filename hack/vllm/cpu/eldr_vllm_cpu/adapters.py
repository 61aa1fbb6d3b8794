"""Adapters (LoRA) on a CPU, as long as they leave experts alone.

With ``--enable-lora`` vLLM computes experts by kernels that adapters of experts need, whether or not there are any: Triton's, which no CPU has.
"""

from __future__ import annotations

from typing import Any

from eldr_vllm_cpu.replace import replace

ENV = "ELDR_CPU_LORA"


def leave_experts_alone() -> None:
    """Have vLLM compute experts as it does without adapters."""
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as method

    select = method.select_unquantized_moe_backend

    def without_adapters(moe_config: Any) -> Any:
        moe_config.is_lora_enabled = False
        return select(moe_config)

    replace(method, "select_unquantized_moe_backend", without_adapters)
