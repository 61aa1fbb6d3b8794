"""litellm before a real router and simulated engines: each of its families that leads to one of our paths.

It lives in an environment of its own: ``ELDR_LITELLM=$(hack/apart hack/litellm) pytest tests/sim/test_litellm.py``. `make test-all` does so.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from eldr.sim import text
from tests.support.processes import engine
from tests.support.router import router

CHILD = Path(__file__).parents[1] / "support" / "litellm_child.py"
WHERE = os.environ.get("ELDR_LITELLM", "")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not WHERE, reason="needs litellm: ELDR_LITELLM=$(hack/apart hack/litellm)"),
]
FAST = ("--speed", "0.05")
TOKENS = 20
"""litellm asks for no fewer than 16 of a response."""
CHAT = text.completion("user: hi", TOKENS)
ALONE = {
    # nothing but the router may be asked: no list of prices, no telemetry
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
}


@pytest.mark.timeout(200)
def test_litellm_reaches_every_path(tmp_path):
    with (
        engine("prefill", *FAST) as p,
        engine("decode", *FAST) as d,
        router(tmp_path, {"p0": p.url, "d0": d.url}) as served,
    ):
        command = [str(Path(WHERE) / "bin" / "python"), str(CHILD), served.url, str(TOKENS)]
        done = subprocess.run(
            command, env=os.environ | ALONE, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert served.counter("whole") == served.counter("retries") == 0, "each was split"
        assert served.counter("signatures", quality="exact") == served.counter("requests", outcome="ok")
    unknown, mistake = told.pop("unknown model"), told.pop("mistake")
    assert unknown == ["NotFoundError", 404]
    assert mistake == ["BadRequestError", 400]
    assert (told.pop("finish"), told.pop("tokens")) == ("length", TOKENS)
    assert told.pop("text") == text.completion("hi", TOKENS)
    assert set(told.values()) == {CHAT}, told
