"""What the plug-in hooks into in vLLM, and what of it an installed vLLM lacks. The gate at an engine's start reads this.

What would raise outside of counting is refused here: an import, a hook, a method that ours replaces. A field that vLLM renamed ends
counting only (:mod:`eldr.engine.counting`). The tests of real engines check that all of it still means the same; they ran with the
releases in :data:`TESTED`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

TESTED = ("0.31", "0.32", "0.33")
"""Minor releases that the real-engine tests ran on, the oldest first; see ``docs/reference/engine-plugin.md``."""

RELEASES = ", ".join(f"{release}.x" for release in TESTED)
_FUSED_MOE = "vllm.model_executor.layers.fused_moe"

PARAMETERS: dict[str, tuple[str, ...]] = {
    f"{_FUSED_MOE}.routed_experts:RoutedExperts.forward_monolithic": ("x", "router_logits", "input_ids"),
    f"{_FUSED_MOE}.routed_experts_capturer:RoutedExpertsCapturer.capture": ("layer_id", "topk_ids"),
}
"""Method that one of ours replaces to the parameters it has."""


def version() -> str:
    """Return the installed vLLM's."""
    return str(importlib.import_module("vllm").__version__)


def tested() -> bool:
    """Return whether it belongs to a release that the tests of real engines ran on."""
    return version().startswith(tuple(f"{release}." for release in TESTED))


def lack(what: Iterable[str]) -> str:
    """Return why an engine is refused whose vLLM lacks something, and the remedy."""
    return (
        f"ELDR cannot run in this engine: vLLM {version()} lacks what it hooks into; use an image with vLLM {RELEASES}. "
        f"Missing: {'; '.join(what)}"
    )


def drafts_first() -> bool:
    """Return whether model runner V2 drafts before it hands a step over to connectors, which then locate its tokens."""
    hand_over = _find("vllm.v1.worker.gpu.kv_connector:ActiveKVConnector.post_forward")
    return "defer_finalize" not in _named(hand_over)


@functools.cache
def missing() -> tuple[str, ...]:
    """Return what the installed vLLM lacks, or has in another form, by name. Looked at once in a process."""
    return tuple(filter(None, (*map(_gone, imports()), *_parameters())))


def imports() -> list[str]:
    """Return every ``module:name`` that the plug-in imports from vLLM."""
    names = set()
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "from vllm" in text else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
                names |= {f"{node.module}:{alias.name}" for alias in node.names}
    return sorted(names)


def _parameters() -> Iterator[str]:
    for target, ours in PARAMETERS.items():
        yield _gone(target) or _incompatible(target, ours, _named(_find(target)))


def different(ours: type) -> list[str]:
    """Return which hooks of a class of ours its bases in vLLM lack, or have with other parameters."""
    differences = []
    for hook in (name for name in vars(ours) if not name.startswith("_")):
        base = next((base for base in ours.__mro__[1:] if hook in vars(base)), None)
        if base is None:
            differences.append(f"{hook}, a hook, is gone")
        elif not isinstance(vars(base)[hook], property):
            differences.append(
                _incompatible(
                    f"{base.__name__}.{hook}", _named(getattr(ours, hook)), _named(getattr(base, hook))
                )
            )
    return [text for text in differences if text]


def unmet(ours: type) -> list[str]:
    """Return what the bases in vLLM of a class of ours leave to it, and it does not have."""
    return [
        f"{base.__name__}.{name} is new, and must be supplied"
        for base in ours.__mro__[1:]
        for name, method in vars(base).items()
        if "NotImplementedError" in getattr(getattr(method, "__code__", None), "co_names", ())
        or getattr(method, "__isabstractmethod__", False)
        if inspect.getattr_static(ours, name) is method
    ]


def _gone(target: str) -> str:
    """Return what of ``module:name`` is not there; empty if it is."""
    try:
        _find(target)
    except ImportError as error:
        return str(error)
    except AttributeError:
        return f"{target} is gone"
    return ""


def _find(target: str) -> Any:
    module, _, path = target.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _named(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name not in {"self", "cls"})


def _incompatible(name: str, ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """Return how two lists of parameters differ; empty if they do not."""
    if ours == theirs:
        return ""
    return f"{name} takes ({', '.join(theirs)}) instead of ({', '.join(ours)})"
