"""The demo with real engines: vLLM on the CPU, a small trained mixture-of-experts model, and this machine's texts."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eldr_demo.answers import Answer, Prompt
from eldr_demo.arrivals import Arrivals, ClosedLoop
from eldr_demo.engines import DRIFT, DemoSettings
from eldr_demo.load import Workload
from eldr_demo.plan import FIRST_MIX, SHORT, Mix
from eldr_kube.agent.images import Image
from eldr_kube.vllm import vllm_images
from eldr_tiny_moe import corpus

HACK = Path(__file__).parents[2]
MODEL = HACK / "tiny_moe" / "model"
CHARACTERS = 300
"""Of a prompt."""
MIXES: dict[Mix, tuple[str, ...]] = {
    "first": ("python", "russian", "chinese", "manual", "french"),
    "second": ("french", "numbers", "json", "licence", "russian"),
}
"""Kinds of text, of each mix the first four that this machine has: both fall apart into two pairs that use other experts."""

_SEQUENCES = 32
# What makes an engine light enough for a third of two cores; on GPU nodes none of this is set.
_ARGS = [
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=2048",
    f"--max-num-seqs={_SEQUENCES}",
    "--max-num-batched-tokens=2048",
    "--kv-cache-memory-bytes=128M",
    "--block-size=32",
]
_ENV = {"VLLM_PLUGINS": "eldr,eldr_cpu", "ELDR_CPU_SHARED_CORES": "1"}
GPU_MODE = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1", "ELDR_CPU_ASYNC": "1"}
"""Model runner V2 and asynchronous scheduling, which vLLM picks on GPUs; its kernels are interpreted here, which takes several times as long."""


class RealEngines:
    """vLLM's engines.

    Parameters
    ----------
    in_flight : int
        Requests at a time. A closed loop, because a rate would measure how busy this machine is: with it, batches
        are the same in every phase and active experts can be compared.
    gpu_mode : bool
        Run what vLLM picks on GPUs instead of what it picks here.
    changes : float
        Settings that differ from the defaults.
    """

    title = "real vLLM on CPUs, a model of 4 layers x 64 experts, real control plane, always as many requests in flight"
    remark = (
        "Engines share this machine's cores and the small model's experts fit its caches: compare \"vs random\", not the times. "
        "What placement does to the time of real engines: docs/benchmarks/policies.md, make -C hack/lab bench-policies."
    )
    known: tuple[str, ...] = ()
    paced = False

    def __init__(self, *, in_flight: int = 40, gpu_mode: bool = False, **changes: float) -> None:
        self._env = _ENV | (GPU_MODE if gpu_mode else {})
        defaults = DemoSettings(
            tokens=160,
            settle=15.0,
            measure=60.0,
            samples=400,
            prefill=1,
            decode=2,
            start_seconds=600.0,
            fit_seconds=600.0,
        )
        self.plan = SHORT
        if gpu_mode:
            # interpreted kernels make ten tokens a second
            defaults = replace(defaults, tokens=12, samples=120, fit_seconds=1200.0)
            self.plan = FIRST_MIX
        self.settings = replace(defaults, **changes)  # type: ignore[arg-type]  # names are checked by replace
        self._in_flight = in_flight
        self._texts = corpus.load()
        self._prompts = corpus.Prompts(self._texts)

    def manifest(self) -> dict[str, Any]:
        """Return a spec as for GPU nodes, but for what two cores need."""
        size = self.settings
        return {
            "model": {"uri": str(MODEL)},
            "engine": {
                "type": "vLLM",
                "args": _ARGS,
                "env": [{"name": name, "value": value} for name, value in self._env.items()],
            },
            "prefill": {"replicas": size.prefill},
            "decode": {"replicas": size.decode},
            # an engine that this machine starves is ejected for a moment, and the other one has room for less than the loop
            "router": {"maxInFlightPerDecode": _SEQUENCES, "maxWaiting": self._in_flight},
            "signatures": {"samplePercent": 100},
            "refit": {"minSamples": size.samples, "drift": DRIFT},
        }

    def images(self) -> Mapping[str, Image]:
        """Return the environment with vLLM as what its images mean; made where it is missing; RuntimeError if it cannot be made here."""
        run = subprocess.run([str(HACK / "vllm" / "install")], stdout=subprocess.PIPE, text=True, check=False)
        if run.returncode:
            raise RuntimeError("the environment of the real engine cannot be made here; see above")
        return vllm_images(Path(run.stdout.strip()))

    def arrivals(self) -> Arrivals:
        """Return a closed loop."""
        return ClosedLoop(self._in_flight)

    def workload(self, name: str, mix: Mix, *, logged: bool) -> Workload:
        """Return requests with texts of the mix; no two of a demo begin alike."""
        kinds = [kind for kind in MIXES[mix] if kind in self._texts][:4]

        def draw(rng: np.random.Generator, number: int) -> Prompt:
            del number
            text = self._prompts.characters(str(rng.choice(kinds)), CHARACTERS)
            # Sampled text, for greedy answers of a small model soon repeat themselves; of lengths that keep them out of step.
            tokens = int(rng.integers(self.settings.tokens // 2, self.settings.tokens * 3 // 2))
            return Prompt(text, verify, {"temperature": 0.8, "ignore_eos": True}, tokens)

        return Workload(name, draw, logged)


def verify(answer: Answer, tokens: int) -> str | None:
    """Return why an answer is wrong: it has another length."""
    return None if answer.tokens == tokens else f"{answer.tokens} of {tokens} tokens"
