"""``hack/vllm/install``: what is the machine's fault, and what is ours."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),  # retries of an index that does not answer, on a busy machine
]

INSTALL = Path(__file__).parents[3] / "hack" / "vllm" / "install"
NEEDED = 8 << 30


class Empty(http.server.BaseHTTPRequestHandler):
    """A package index without packages."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def index():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def install(tmp_path):
    if shutil.disk_usage(tmp_path).free < NEEDED:
        pytest.skip("needs 8 GB of disk, or the installer stops at that")

    def run(index: str = "http://127.0.0.1:1/simple", release: str = "") -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "XDG_"))}
        changed = {
            "XDG_CACHE_HOME": str(tmp_path),
            "UV_DEFAULT_INDEX": index,
            "UV_HTTP_RETRIES": "0",
            "NO_PROXY": "*",
        }
        return subprocess.run(
            [INSTALL, *filter(None, [release])],
            env=kept | changed,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

    return run


def test_an_index_that_does_not_answer_is_the_machines_fault(install):
    done = install()
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.endswith("real vLLM cannot be installed here: the package index does not answer\n")


@pytest.mark.costly
@pytest.mark.parametrize("release", ["", "0.33"])
def test_a_requirement_that_does_not_exist_is_ours(install, index, release):
    done = install(index, release=release)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert f"packages of hack/vllm/{release or '0.32'}.txt do not install" in done.stderr
    assert "No solution found" in done.stderr
    assert "cannot be installed here" not in done.stderr
