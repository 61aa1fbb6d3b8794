"""vLLM 0.32.0: one request with half of its ``kv_transfer_params`` ends an engine that pulls KV, and every request in it.

    python malformed_transfer.py MODEL

Starts one engine with the NIXL connector, asks it for a long answer, and meanwhile sends a request that says where to pull from, but
not what. Further arguments go to `vllm serve`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

PORT = 8104


def post(fields: dict[str, object]) -> str:
    body = {"model": "m", "prompt": [7] * 20, "temperature": 0, "ignore_eos": True} | fields
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        return str(urllib.request.urlopen(request, timeout=300).status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return repr(error)


def healthy() -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).status == 200
    except OSError:
        return False


def main() -> None:
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    command = [
        "vllm",
        "serve",
        sys.argv[1],
        "--served-model-name",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        str(PORT),
    ]
    command += ["--kv-transfer-config", json.dumps(transfer), *sys.argv[2:]]
    engine = subprocess.Popen(command, env=os.environ, start_new_session=True)
    try:
        while engine.poll() is None and not healthy():
            time.sleep(1)
        print(f"a request alone: {post({'max_tokens': 5})}", flush=True)
        other: list[str] = []
        thread = threading.Thread(target=lambda: other.append(post({"max_tokens": 900})))
        thread.start()
        time.sleep(2)
        half = {"max_tokens": 5, "kv_transfer_params": {"do_remote_prefill": True}}
        print(f"the request with half of its kv_transfer_params: {post(half)}", flush=True)
        thread.join()
        print(f"somebody else's request, which ran meanwhile: {other[0]}", flush=True)
        time.sleep(5)
        print(f"the engine after it: {'serves' if healthy() else 'has ended'}", flush=True)
    finally:
        if engine.poll() is None:
            os.killpg(engine.pid, signal.SIGTERM)
        engine.wait()


if __name__ == "__main__":
    main()
