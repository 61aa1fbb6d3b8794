"""What a measurement ran on: the processor's name, how busy it was, the code's commit, and the environment of real engines."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
GENERATED = "docs/benchmarks"
BUSY = 0.5
"""Load average per core above which figures are told to be those of a busy machine."""


def cpu_model() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def revision() -> str:
    """Return the commit of this checkout, and whether anything but generated pages differs from it; it may be no checkout."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.check_output(
            [*git, "rev-parse", "--short=10", "HEAD"], text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return "code that Git does not know"
    changed = subprocess.check_output(
        [*git, "status", "--porcelain", "--", ".", f":!{GENERATED}"], text=True
    ).strip()
    return f"commit {commit}{' with changes that are not committed' if changed else ''}"


def load_before() -> str:
    """Return the load average, to be asked for before a measurement; one that other programs cause is called busy."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    busy = ", **a busy machine: read ratios, not times**" if load > BUSY * cores else ""
    return f"load average before {load:.1f}{busy}"


def one_thread() -> None:
    """Begin this program again with one thread of linear algebra, as routers and fits have it, unless it has."""
    if os.environ.get("OMP_NUM_THREADS") != "1":  # NumPy reads it when it is imported
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "OMP_NUM_THREADS": "1"})


def vllm_environment() -> Path:
    """Return vLLM's environment, made on first use; exits as ``hack/vllm/install`` does where it cannot be made."""
    done = subprocess.run(
        [ROOT / "hack" / "vllm" / "install"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    return Path(done.stdout.strip())
