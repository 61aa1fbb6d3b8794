"""What a stored result was measured with: results that differ in any of it are not put together."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from eldr_bench.machine import ROOT, cpu_model
from eldr_lab.steps.machine import TINY

_RUN = tuple(f"eldr_lab.steps.{name}" for name in ("batches", "pace", "pools", "server", "start", "traffic", "widen"))  # fmt: skip
_OURS = ("eldr", "eldr_bench", "eldr_demo", "eldr_lab", "eldr_tiny_moe")


def key(environment: Path, setting: str) -> dict[str, str]:
    """Return what a result depends on, each part short enough for a message.

    Parameters
    ----------
    environment : Path
        vLLM's; its name says what is installed.
    setting : str
    """
    return {
        "code": code(),
        "vLLM": environment.name,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores, {_short(platform.node().encode())}",
        "setting": setting,
    }


def code() -> str:
    """Return a digest of the code that a measurement runs, and of its model; comments and docstrings may change."""
    told = [f"{name} {ast.dump(tree)}".encode() for name, tree in sorted(modules(_RUN).items())]
    return _short(b"\0".join([*told, (TINY / "model" / "model.safetensors").read_bytes()]))


def modules(names: Sequence[str]) -> dict[str, ast.Module]:
    """Return this project's modules that those named import, whoever imports them, and they themselves."""
    found: dict[str, ast.Module] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found or (path := _source(name)) is None:
            continue
        found[name] = tree = without_texts(path.read_text())
        todo += _imported(tree)
    return found


def without_texts(source: str) -> ast.Module:
    """Return code without its comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [part for part in body if not _is_text(part)]
    return tree


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _source(name: str) -> Path | None:
    """Return the file of a module of this project; None where the name is another thing."""
    if name.split(".", maxsplit=1)[0] not in _OURS:
        return None
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # a class or a function of a module
        return None
    path = Path(spec.origin) if spec and spec.origin else None
    return path if path and path.is_relative_to(ROOT) else None


def _short(what: bytes) -> str:
    return hashlib.sha256(what).hexdigest()[:10]
