"""The prefill stage: nothing of it is fitted, prompts take what the model's constants say."""

from __future__ import annotations

from eldr.core.step_time import StepTime
from eldr_lab.pool.workload import Prefill

ENGINES = 8
PARAMETERS = {"qwen3-30b": 3.3e9, "gpt-oss-120b": 5.1e9, "gemma-4-26b": 3.8e9}
"""Active ones per token; two operations each."""
FLOPS = 500e12
"""Operations per second that an engine reaches: 38 % of an MI300X's peak with 16 bits."""


def prefill(geometry: str, law: StepTime) -> Prefill:
    """Return the stage of a model: a prompt reads every expert once, in the time that the decode law gives for it, and computes."""
    return Prefill(ENGINES, law.seconds(0, law.n_experts), 2 * PARAMETERS[geometry] / FLOPS)
