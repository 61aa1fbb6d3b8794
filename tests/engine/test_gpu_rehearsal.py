"""What a GPU will run first has run before, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rehearse(*before):
    path = os.pathsep.join(map(str, (ROOT, ROOT / "hack" / "bench")))
    program = "\n".join([*before, "from eldr_bench.gpu_kernels import main", "main()"])
    return subprocess.run(
        [sys.executable, "-P", "-c", program, "--rehearse"],
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_kernels_of_gpus_find_what_torch_finds():
    done = rehearse()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal to torch") == 5
    assert "nothing was timed or written" in done.stdout


def test_a_kernel_that_counts_otherwise_gives_no_figures():
    wrong = "import eldr.engine.capture.kernels as k; right = k.count_requests; k.count_requests = lambda r, i, s: right(r, i, s + 1)"
    done = rehearse(wrong)
    assert done.returncode == 1
    assert "decode, batch 5: the device finds otherwise than torch" in done.stderr
