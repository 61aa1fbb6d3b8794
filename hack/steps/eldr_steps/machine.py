"""Where real engines run on this machine, and the model that they run."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TINY = ROOT / "hack" / "tiny_moe"
WIDTH = 2048
"""Units of an expert: reading one takes as long as in a large model."""
N_EXPERTS, TOP_K = 64, 4
BLOCK = 32
"""Tokens of a KV block."""
MAX_NUM_SEQS = 64
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
    "PYTHONPATH": os.pathsep.join([str(ROOT / "hack" / "steps"), str(TINY)]),
}
"""Of a process that holds an engine."""


def cpu_model() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def vllm_environment() -> Path:
    """Return vLLM's environment, made on first use; exits as ``hack/vllm/install`` does where it cannot be made."""
    done = subprocess.run(
        [ROOT / "hack" / "vllm" / "install"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    return Path(done.stdout.strip())


def wide_model(python: Path) -> Path:
    """Return the small trained model with wide experts, made on first use; its name says what it was made of."""
    made_of = hashlib.sha256()
    for path in (TINY / "eldr_tiny_moe" / "widen.py", TINY / "model" / "model.safetensors"):
        made_of.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eldr" / "models"
    folder = cache / f"tiny-moe-{WIDTH}-{made_of.hexdigest()[:12]}"
    if not folder.exists():
        command = [str(python), "-m", "eldr_tiny_moe.widen", str(folder), "--width", str(WIDTH)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(TINY)})
    return folder
