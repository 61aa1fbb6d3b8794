"""Step-time laws of accelerators."""

from __future__ import annotations

import math
from dataclasses import replace

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime

GPT_OSS_120B_MI300X = StepTime(
    fixed=4.18e-3 + 36 * 9.78e-6 * 14.27, per_expert=36 * 9.78e-6, per_request=31.8e-6, n_experts=128
)
"""Fit to published decode times of GPT-OSS-120B on MI300X (ELDR's artifact, round-robin runs): 36 layers, 9.78 us an expert
and layer, 14.27 experts' time of overhead a layer, 4.18 ms beside them, 31.8 us a request."""

GEMMA_4_26B_MI300X = StepTime(
    fixed=30 * 6.41e-6 * 14.27, per_expert=30 * 6.41e-6, per_request=0.0, n_experts=128
)
"""The same for Gemma-4-26B-A4B: 30 layers, 6.41 us an expert and layer. Its published times are no straight line (60 requests/s
are slower than 100), so that nothing is left for requests and for what is beside the experts."""

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
    "qwen3-30b-mi300x": QWEN3_30B_MI300X,
    "gpt-oss-120b-mi300x": GPT_OSS_120B_MI300X,
    "gemma-4-26b-mi300x": GEMMA_4_26B_MI300X,
    "qwen3-235b-mi300x": QWEN3_235B_MI300X,
    "deepseek-v3-mi300x": DEEPSEEK_V3_MI300X,
}
"""By name; ``make evidence`` fits those of published times anew and tells how far off they are."""


def parse_law(text: str, n_experts: int) -> StepTime:
    """Return a law by its name or its three constants.

    Parameters
    ----------
    text : str
        A name of :data:`LAWS`, whose experts' share of a layer then costs the same in a model with another number; or
        ``FIXED_MS,PER_EXPERT_US,PER_REQUEST_US``.
    n_experts : int
        Experts per layer of the model that is simulated.

    Raises
    ------
    ValueError
        If it is neither, or takes no time.
    """
    if text in LAWS:
        return LAWS[text].for_experts(n_experts)
    try:
        fixed, per_expert, per_request = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{text!r}: expected {', '.join(LAWS)}, or FIXED_MS,PER_EXPERT_US,PER_REQUEST_US"
        ) from None
    constants = (fixed, per_expert, per_request)
    if not all(math.isfinite(constant) and constant >= 0 for constant in constants) or sum(constants) <= 0:
        raise ValueError(f"{text!r}: expected finite times, none below 0 and one above")
    return StepTime(fixed * 1e-3, per_expert * 1e-6, per_request * 1e-6, n_experts)


def after(law: StepTime, seconds: float) -> StepTime:
    """Return the law of steps that take so much longer, whatever they compute."""
    return replace(law, fixed=law.fixed + seconds)


def scaled(law: StepTime, factor: float) -> StepTime:
    """Return the law of an engine that takes so many times as long."""
    return StepTime(
        law.fixed * factor, law.per_expert * factor, law.per_request * factor, n_experts=law.n_experts
    )
