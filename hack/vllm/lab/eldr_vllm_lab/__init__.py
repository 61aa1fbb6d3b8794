"""Lets several real engines share two cores: NIXL's progress thread sleeps between its rounds instead of spinning.

For laboratories only. On a node with enough cores the spinning thread is what makes a pull fast.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

ENV_DELAY = "ELDR_LAB_NIXL_DELAY_US"


def register() -> None:
    """Make NIXL's agents sleep ``ELDR_LAB_NIXL_DELAY_US`` microseconds between rounds; called by vLLM in each process."""
    delay = os.environ.get(ENV_DELAY)
    if not delay or importlib.util.find_spec("nixl") is None:
        return
    import nixl._api  # noqa: F401 - it imports the half of NIXL that fits torch

    halves = ("nixl_cu13._api", "nixl_cu12._api", "nixl_rocm._api", "nixl._api")
    api = next(module for name in halves if (module := sys.modules.get(name)) is not None)
    api.nixlBind = _Binding(api.nixlBind, int(delay))


class _Binding:
    """NIXL's binding module, with an agent constructor that changes one field of its configuration.

    Parameters
    ----------
    binding : module
    delay : int
        Microseconds.
    """

    def __init__(self, binding: Any, delay: int) -> None:
        self._binding = binding
        self._delay = delay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802 - NIXL's spelling
        """Make an agent."""
        config.pthrDelay = self._delay
        return self._binding.nixlAgent(name, config)
