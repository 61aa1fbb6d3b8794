"""The programs in hack/ that have no suffix, as modules."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HACK = Path(__file__).parents[2] / "hack"


def script(name: str) -> ModuleType:
    """Load a program of hack/ without running it."""
    loader = importlib.machinery.SourceFileLoader(f"hack_{name}", str(HACK / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # where its classes are looked up
    loader.exec_module(module)
    return module
