"""vLLM 0.32.0: paths of endpoint plug-ins answer without the API key, unless they begin as vLLM's own do.

    python unguarded_endpoint.py MODEL

Puts a plug-in with two paths into a folder of its own, starts `vllm serve --api-key` with it, and asks without a key.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 8103
PLUGIN = """
class Plugin:
    name = "example"
    required_tasks = None

    def attach_router(self, app):
        app.add_api_route("/example/secret", self.secret)
        app.add_api_route("/v1/example/secret", self.secret)

    async def init_state(self, engine_client, state, args):
        pass

    async def secret(self):
        return "what only holders of a key should read"
"""


def status(path: str) -> int:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "example_plugin.py").write_text(PLUGIN)
        metadata = Path(folder, "example_plugin-1.dist-info")
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example-plugin\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(
            "[vllm.endpoint_plugins]\nexample = example_plugin:Plugin\n"
        )
        command = [
            "vllm",
            "serve",
            sys.argv[1],
            "--host",
            "127.0.0.1",
            "--port",
            str(PORT),
            "--api-key",
            "key",
            *sys.argv[2:],
        ]
        engine = subprocess.Popen(
            command,
            env=os.environ | {"VLLM_PLUGINS": "example", "PYTHONPATH": folder},
            start_new_session=True,
        )
        try:
            while engine.poll() is None and status("/health") != 200:
                time.sleep(1)
            for path in ("/v1/models", "/v1/example/secret", "/example/secret"):
                print(f"GET {path} without a key: {status(path)}", flush=True)
        finally:
            os.killpg(engine.pid, signal.SIGTERM)
            engine.wait()


if __name__ == "__main__":
    main()
