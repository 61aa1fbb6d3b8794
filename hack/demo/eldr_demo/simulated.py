"""The demo with simulated engines: traces of a trained model, and text that tells every misplaced KV block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.sim import text, traces
from eldr_demo.answers import Answer, Prompt
from eldr_demo.arrivals import Arrivals, Poisson
from eldr_demo.engines import DRIFT, DemoSettings
from eldr_demo.load import Workload
from eldr_demo.plan import FULL, Mix
from eldr_kube.agent.images import Image

MIXES: dict[Mix, tuple[str, ...]] = {
    "first": ("fr", "ru", "manual", "legal"),
    "second": ("en", "zh", "python", "changelog"),
}


class SimulatedEngines:
    """Engines of ``eldr engine-sim``.

    Parameters
    ----------
    rate : float
        Mean arrivals per second.
    speed : float
        Step time relative to a Qwen3-30B-A3B on an MI300X; above 1 spares the machine.
    changes : float
        Settings that differ from the defaults; None keeps a default.
    """

    title = "simulated engines, real control plane, the same requests at the same times for every policy"
    remark = ""
    paced = True
    plan = FULL

    def __init__(self, *, rate: float = 11.0, speed: float = 3.0, **changes: float) -> None:
        defaults = DemoSettings(
            tokens=96,
            settle=10.0,
            measure=40.0,
            samples=450,
            prefill=2,
            decode=4,
            start_seconds=90.0,
            fit_seconds=120.0,
        )
        self.settings = replace(defaults, **changes)  # type: ignore[arg-type]  # names are checked by replace
        self._rate = rate
        self._speed = speed
        self._traces = traces.load()
        step_time = QWEN3_30B_MI300X.for_experts(self._traces.n_experts)
        constants = (1e3 * step_time.fixed, 1e6 * step_time.per_expert, 1e6 * step_time.per_request)
        self.known: tuple[str, ...] = (
            *("--engines", str(self.settings.decode)),
            *("--step-time", ",".join(f"{speed * constant:.6g}" for constant in constants)),
        )

    def manifest(self) -> dict[str, Any]:
        """Return a minimal spec, but for what a two-core machine and a short run need."""
        size = self.settings
        return {
            "model": {"uri": "sim://tiny-moe"},
            "engine": {"type": "Simulator", "args": ["--speed", str(self._speed)]},
            "prefill": {"replicas": size.prefill},
            "decode": {"replicas": size.decode},
            "signatures": {"samplePercent": 100},
            "refit": {"minSamples": size.samples, "drift": DRIFT},
        }

    def images(self) -> Mapping[str, Image]:
        """Return nothing: the simulator is in our own image."""
        return {}

    def arrivals(self) -> Arrivals:
        """Return random arrivals, however the pool fares."""
        return Poisson(self._rate)

    def workload(self, name: str, mix: Mix, *, logged: bool) -> Workload:
        """Return requests that replay records of the mix; fits and measurements get disjoint ones."""
        for_fits, for_measuring = self._traces.split(MIXES[mix])
        return Workload(name, replay(for_fits if logged else for_measuring), logged)


def replay(records: Sequence[int]) -> Callable[[np.random.Generator, int], Prompt]:
    """Return prompts that make simulated engines replay one of these records, and know the only right answer."""
    choices = np.asarray(records)

    def draw(rng: np.random.Generator, number: int) -> Prompt:
        prompt = f"{traces.tag(int(rng.choice(choices)))} question {number}"

        def verify(answer: Answer, tokens: int) -> str | None:
            return None if answer.text == text.completion(f"user: {prompt}", tokens) else "wrong tokens"

        return Prompt(prompt, verify)

    return draw
