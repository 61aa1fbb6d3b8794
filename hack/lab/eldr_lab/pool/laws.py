"""Step-time models of engines of several ranks, which no published times were fitted to."""

from __future__ import annotations

from dataclasses import replace

from eldr.core.step_time import StepTime
from eldr.simulate import step_times

QWEN3_235B_MI300X = StepTime(
    fixed=10.4e-3 + 94 * 49.2e-6, per_expert=94 * 13.8e-6, per_request=5.9e-6, n_experts=128
)
"""Qwen3-235B-A22B on 4 ranks (tensor and expert parallel), per expert of the fullest rank: not fitted, its published times are
not known. From Qwen3-30B's constants by layers and bytes: 94 layers, 13.8 us an expert and layer (4 times the bytes), the same 49.2 us
of overhead a layer, launches for 94 layers and a quarter of the attention's 14.6 GB, a quarter of the KV cache; no time for all-reduces."""

DEEPSEEK_V3_MI300X = StepTime(
    fixed=6.7e-3 + 58 * 49.2e-6, per_expert=58 * 16.1e-6, per_request=9.6e-6, n_experts=256
)
"""DeepSeek-V3 in fp8 on 8 ranks (tensor and expert parallel), per expert of the fullest rank: as little fitted. From Qwen3-30B's constants: 58
layers of experts, 16.1 us an expert and layer (44 MB), the same 49.2 us of overhead a layer, launches for 61 layers, an eighth of the attention's 11 GB,
of the shared experts and of the dense layers, the whole latent KV cache of a request on each rank; no time for all-reduces."""

LAWS = {
    **step_times.STEP_TIMES,
    "qwen3-235b-mi300x": QWEN3_235B_MI300X,
    "deepseek-v3-mi300x": DEEPSEEK_V3_MI300X,
}
"""By name, those of the product among them."""


def after(law: StepTime, seconds: float) -> StepTime:
    """Return the law of steps that take so much longer, whatever they compute."""
    return replace(law, fixed=law.fixed + seconds)
