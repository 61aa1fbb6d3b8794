"""What a GPU will run first has run before, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_kernels_of_gpus_find_what_torch_finds():
    path = os.pathsep.join(map(str, (ROOT, ROOT / "hack" / "bench")))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "eldr_bench.gpu_kernels", "--rehearse"],
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal to torch") == 5
    assert "nothing was timed or written" in done.stdout
