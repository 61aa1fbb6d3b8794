"""The small model with wide experts, and what both sides of the pipe to an engine know."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from eldr_bench.machine import ROOT

LAB, BENCH, TINY = (ROOT / "hack" / name for name in ("lab", "bench", "tiny_moe"))
WIDTH = 2048
"""Units of an expert: reading one takes as long as in a large model."""
N_EXPERTS, TOP_K = 64, 4
BLOCK = 32
"""Tokens of a KV block."""
MAX_NUM_SEQS = 64
SHORTEST, LONGEST = 32, 96
"""Tokens of answers."""
TIMES = ("TPOT mean", "TPOT P50", "TPOT P99")
MEASURES = (*TIMES, "active experts", "batch", "tokens/s")
"""Times in seconds; experts as a generated token sees them, batch as a step does."""
PYTHONPATH = os.pathsep.join(map(str, (LAB, BENCH, TINY)))
VARIABLES = {
    # one process and one thread, so that its CPU time is all there is
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_PLUGINS": "",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": PYTHONPATH,
}
"""Of a process that holds an engine."""


class Step(NamedTuple):
    """A step.

    Attributes
    ----------
    seconds : float
        CPU time of the one thread that does everything: on a machine shared with others it says what the clock would on one's own.
    rows : int
        Tokens computed.
    experts : list of int
        Distinct ones, layer by layer.
    names, ended : list of str
        Requests that got a token, and those that got their last one.
    """

    seconds: float
    rows: int
    experts: list[int]
    names: list[str]
    ended: list[str]

    @property
    def active(self) -> float:
        """Distinct experts, mean over the layers."""
        return sum(self.experts) / len(self.experts)


def wide_model(python: Path) -> Path:
    """Return the small trained model with wide experts, made on first use; its name says what it was made of."""
    made_of = hashlib.sha256()
    for path in (Path(__file__).with_name("widen.py"), TINY / "model" / "model.safetensors"):
        made_of.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eldr" / "models"
    folder = cache / f"tiny-moe-{WIDTH}-{made_of.hexdigest()[:12]}"
    if not folder.exists():
        command = [str(python), "-m", "eldr_lab.steps.widen", str(folder)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": PYTHONPATH})
    return folder
