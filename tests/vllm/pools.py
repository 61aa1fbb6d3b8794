"""A pair of real engines of one model, beside the transformers reference of the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from eldr_tiny_moe.client import MODEL, ReferenceClient
from tests.support.processes import wait_for
from tests.vllm.engines import NAME, Engine, Mode, Setup
from tests.vllm.pair import Pair


@dataclass
class Pools:
    """A pair of one model, and the reference of the same.

    Attributes
    ----------
    drafts : str or None
        How engines draft.
    """

    pair: Pair
    reference: ReferenceClient
    prefill: Engine
    decode: Engine
    near_ties: list[str]
    family: str
    drafts: str | None = None

    @property
    def hybrid(self) -> bool:
        """Whether some layers see a sliding window only."""
        return self.family in {"gptoss", "gemma4", "gemma4-split", "gemma4-vision"}


def chunked(mode: Mode, plugin: Path, *arguments: str, **env: str) -> Setup:
    """Return how an engine of the trained model is set up whose prompts are computed in several chunks."""
    arguments = (*arguments, "--max-num-batched-tokens", "64")
    return Setup(
        role="plain", plugin=plugin, model=MODEL, max_len=1024, mode=mode, arguments=arguments, env=env
    )


@contextmanager
def serving(
    family: str,
    setup: Setup,
    caches: tuple[str, str],
    environment: Path,
    folder: Path,
    near_ties: list[str],
) -> Iterator[Pools]:
    """Start a prefill and a decode engine that differ by their role and by the size of their KV cache."""
    engines = []
    for role, cache in zip(("prefill", "decode"), caches, strict=True):
        arguments = (*setup.arguments, "--kv-cache-memory-bytes", cache)
        engines.append(Engine(role, replace(setup, role=role, arguments=arguments), environment, folder))
    for engine in engines:
        engine.start()
    try:
        with ReferenceClient(environment, setup.model) as reference:
            for engine in engines:
                wait_for(engine.ready, f"{engine.name} of {family}", 300, engine.tail)
            pair = Pair(engines[0].url, engines[1].url, NAME)
            yield Pools(pair, reference, *engines, near_ties, family)
    finally:
        for engine in engines:
            engine.stop()
