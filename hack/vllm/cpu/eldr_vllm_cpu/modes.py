"""The modes that vLLM runs in on GPUs, on a CPU: asynchronous scheduling, and model runner V2.

The CPU platform switches the first off because it needs none. The second needs Triton, whose wheel has no backend for CPUs; Triton's
interpreter runs its kernels all the same.
"""

from __future__ import annotations

import os
from typing import Any

from eldr_vllm_cpu.replace import replace

ENV_ASYNC = "ELDR_CPU_ASYNC"
ENV_INTERPRET = "TRITON_INTERPRET"
"""Triton's own; it must be set before Triton is imported, which torch may do."""


class _Driver:
    """What vLLM asks a Triton backend before it believes in Triton."""

    @staticmethod
    def is_active() -> bool:
        return True


def interpret() -> None:
    """Have vLLM use Triton where it interprets; called before vLLM looks for Triton, as a plug-in that brings no platform."""
    if os.environ.get(ENV_INTERPRET) != "1":
        return
    from torch._dynamo import config as compiling
    from triton.backends import Backend, backends

    compiling.disable = True  # what torch compiles asks Triton for a target, which the interpreter has not
    backends["cpu"] = Backend(compiler=None, driver=_Driver)


def schedule_asynchronously() -> None:
    """Have engines schedule a step while the one before it computes."""
    from vllm.platforms.cpu import CpuPlatform

    inner = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        inner(cls, config)
        config.scheduler_config.async_scheduling = True

    replace(CpuPlatform, "check_and_update_config", classmethod(check_and_update_config))
