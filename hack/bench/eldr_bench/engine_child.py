"""An engine that is measured: what it is asked, and what its answers must hold."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from eldr_bench.machine import ROOT
from eldr_bench.proof import require

MODEL = ROOT / "hack" / "tiny_moe" / "model"
TOKENS = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """A model: the trained one, or one of random weights made from it by other sizes."""

    name: str
    dtype: str
    prompts: tuple[int, ...]
    overrides: Mapping[str, int] = field(default_factory=dict)
    model: str = str(MODEL)


@dataclass(frozen=True, slots=True)
class Setting:
    """How engines run.

    Attributes
    ----------
    mode : str
        Model runner and scheduler that they must have, as ``V1, synchronous``; empty: whatever vLLM picks.
    env : mapping of str to str
    plugins : str
        vLLM's plug-ins that both engines load.
    arguments : mapping
        Of vLLM's ``EngineArgs``.
    clock : {"process_time", "perf_counter"}
        CPU time, which other programs disturb less, or the clock on the wall, which knows a device.
    """

    mode: str
    arguments: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    plugins: str = ""
    clock: str = "process_time"


class Kind(NamedTuple):
    """What is started, with the plug-in and without; ``python`` is that of an environment with vLLM."""

    python: Path
    shape: Shape
    setting: Setting


@dataclass(frozen=True, slots=True)
class Work:
    """Requests that begin together."""

    role: str
    requests: int
    length: int
    tokens: int

    def names(self) -> list[str]:
        """Return what is compared."""
        if self.tokens == 1:
            return [f"prefill request of {self.length} tokens, one step"]
        return [
            f"decode step, batch {self.requests}",
            f"decode requests, {self.requests} x {self.tokens} tokens",
        ]

    def seconds(self, steps: list[float]) -> list[float]:
        """Return the figures from those of the steps; the first step of a decode request is its prefill."""
        return [sum(steps)] if self.tokens == 1 else [float(np.median(steps[1:])), sum(steps)]


class Proof:
    """What an engine's answers must hold: the steps and tokens of the work, and counts exactly where the plug-in is."""

    def __init__(self, role: str, *, counting: bool) -> None:
        self._counting = counting
        self._signs = counting and role == "kv_producer"
        self._records = counting and role == "kv_consumer"
        self._due = self._seen = 0
        self._ahead = False

    def begin(self, told: dict[str, Any]) -> str:
        """Take what the engine says of itself; return the model runner and the scheduler in it."""
        connector = told["connector"]
        require(connector == self._counting, f"an engine that counts ({self._counting}) tells {told}")
        self._ahead = told["scheduler"] == "asynchronous"
        return f"{told['runner']}, {told['scheduler']}"

    def hold(self, work: Work, answer: dict[str, Any]) -> None:
        """Hold an answer against the work. A record comes with the step after its request, so that the last ones may be missing."""
        what = f"{work.names()[0]}: "
        steps, generated = len(answer["seconds"]), [len(ids) for ids in answer["generated"].values()]
        # a step that is scheduled ahead brings its tokens with a later one
        right = steps >= work.tokens if self._ahead else steps == work.tokens
        require(right, f"{what}{work.tokens} tokens took {steps} steps")
        require(generated == [work.tokens] * work.requests, f"{what}generated {generated} tokens")
        signatures = _what_counts(answer["signatures"].values())
        expected = [[work.length, True]] * work.requests if self._signs else []
        require(signatures == expected, f"{what}signed {signatures}, expected {expected}")
        records = _what_counts(answer["records"])
        self._seen += len(records)
        fed = [work.tokens - 1, True]
        right = self._records and self._due <= self._seen <= self._due + work.requests
        require(
            (right or not self._records) and records == [fed] * (len(records) if self._records else 0),
            f"{what}{self._seen} activation records, of {self._due} at least, the last ones {records[-3:]}",
        )
        self._due += work.requests


def _what_counts(said: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    return [[counts.get("tokens"), counts.get("exact")] for counts in said]


class Child:
    """An engine in a process of its own, which stands still until it is asked.

    Parameters
    ----------
    plugin : Path or None
        Folder with the plug-in; None runs without it.
    """

    def __init__(self, kind: Kind, role: str, plugin: Path | None, log: IO[bytes]) -> None:
        python, shape, setting = kind
        setup = {
            "role": role,
            "counting": plugin is not None,
            "clock": setting.clock,
            "arguments": {
                "model": shape.model,
                "hf_overrides": dict(shape.overrides),
                "load_format": "dummy" if shape.overrides else "auto",
                "dtype": shape.dtype,
                **setting.arguments,
            },
        }
        plugins = ["eldr"] if plugin else []
        self._process = subprocess.Popen(
            # -P: files beside the script would hide packages of the same name
            [python, "-P", Path(__file__).with_name("engine_steps.py"), json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(plugin or ""),
                "VLLM_PLUGINS": ",".join([*plugins, *filter(None, [setting.plugins])]),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
                **setting.env,
            },
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self._proof = Proof(role, counting=plugin is not None)

    def answer(self) -> Any:
        """Return its next line."""
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"an engine ended with {self._process.wait()}, see its log")
        return json.loads(line)

    def begin(self) -> str:
        """Wait until it can be asked; return what computes and schedules in it."""
        return self._proof.begin(self.answer())

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        """Return what the engine answers to requests that begin together, see ``engine_steps.py``."""
        self._questions.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._questions.flush()
        answer: dict[str, Any] = self.answer()
        return answer

    def run(self, work: Work, seed: int) -> list[float]:
        """Return the seconds of some work with random prompts, of which nothing is cached."""
        prompts = np.random.default_rng(seed).integers(300, 4000, (work.requests, work.length)).tolist()
        answer = self.ask(prompts, work.tokens)
        self._proof.hold(work, answer)
        return work.seconds(answer["seconds"])

    def close(self) -> None:
        """End it."""
        self._questions.close()
        self._process.wait()
        self._answers.close()
