"""Lets several real engines share two cores: nothing in them spins, nothing is bound to a core, and they start fast.

Each engine of vLLM has processes that wait for each other by yielding the core in a loop, and with NIXL on CPUs each
binds its worker to the machine's last core. Workers of several engines then meet on one core, where a kernel was seen to
leave a runnable worker without any time for more than a minute, while another's yielded there. And each of an engine's
three processes imports all of torch and vLLM anew: most of a start on two cores, 34 s against 13 s if they are forked.

For tests and the demo only. On a node with enough cores the spinning is what makes engines fast.
"""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import sys
import time
from typing import Any

from eldr_vllm_cpu import adapters, modes
from eldr_vllm_cpu.replace import replace

ENV = "ELDR_CPU_SHARED_CORES"
ENV_EXPERT_PARALLEL = "ELDR_CPU_EXPERT_PARALLEL"
_NIXL_DELAY = 1000  # microseconds
_YIELD_SECONDS = 1e-4


def register() -> None:
    """Do what the environment asks for; called by vLLM in each of an engine's processes.

    ``ELDR_CPU_SHARED_CORES`` makes an engine a good neighbour, ``ELDR_CPU_EXPERT_PARALLEL`` supplies what
    :mod:`eldr_vllm_cpu.expert_parallel` says, ``ELDR_CPU_LORA`` what :mod:`eldr_vllm_cpu.adapters` says,
    ``ELDR_CPU_ASYNC`` schedules asynchronously. Without being asked to it lets Gemma 4 read images.
    """
    _tell_memory()
    if os.environ.get(modes.ENV_ASYNC):
        modes.schedule_asynchronously()
    if os.environ.get(adapters.ENV):
        adapters.leave_experts_alone()
    if os.environ.get(ENV_EXPERT_PARALLEL):
        from eldr_vllm_cpu import expert_parallel

        expert_parallel.install()
    if not os.environ.get(ENV):
        return
    _sleep_instead_of_yielding()
    _bind_no_worker()
    _fork()
    if importlib.util.find_spec("nixl") is not None:
        _sleep_between_rounds()


def _tell_memory() -> None:
    import psutil
    import torch

    def of_host(_device: Any = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    # vLLM's Gemma 4 asks how many images fit at a time, and there is no accelerator that could say
    replace(torch.accelerator, "get_memory_info", of_host)


def _sleep_instead_of_yielding() -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    replace(shm_broadcast, "sched_yield", functools.partial(time.sleep, _YIELD_SECONDS))


def _bind_no_worker() -> None:
    from vllm.platforms.cpu import CpuPlatform

    # only the NIXL connector asks, for the cores that it binds its thread to: the one that computes
    replace(CpuPlatform, "discover_numa_topology", classmethod(lambda _: []))


def _fork() -> None:
    from vllm.v1.engine import utils
    from vllm.v1.executor import multiproc_executor

    # the platform insists on "spawn" in the environment; on CPUs nothing is initialised that a fork would break
    for module in (utils, multiproc_executor):
        replace(module, "get_mp_context", functools.partial(multiprocessing.get_context, "fork"))


def _sleep_between_rounds() -> None:
    import nixl._api  # noqa: F401 - it imports the half of NIXL that fits torch

    halves = ("nixl_cu13._api", "nixl_cu12._api", "nixl_rocm._api", "nixl._api")
    api = next(module for name in halves if (module := sys.modules.get(name)) is not None)
    replace(api, "nixlBind", _Binding(api.nixlBind))


class _Binding:
    """NIXL's binding module, with an agent constructor that changes one field of its configuration.

    Parameters
    ----------
    binding : module
    """

    def __init__(self, binding: Any) -> None:
        self._binding = binding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802 - NIXL's spelling
        """Make an agent whose progress thread sleeps between its rounds."""
        config.pthrDelay = _NIXL_DELAY
        return self._binding.nixlAgent(name, config)
