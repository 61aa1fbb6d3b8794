"""vLLM 0.32.0 and 0.33.0: answers after a NIXL pull that differ from those without one, and no error anywhere.

    python nixl_pull.py MODEL           # pulled at once: every answer must be equal
    python nixl_pull.py MODEL --late    # pulled after the lease has ended and the blocks were given to other prompts
    python nixl_pull.py MODEL --lengths 126,127,128    # prompts of so many tokens

Starts a prefill and a decode engine on this machine (NIXL over loopback), asks for greedy answers as token ids, once pulled and once computed by
the prefill engine alone, and says which differ. MODEL is any model that both engines can hold; further arguments go to both `vllm serve`.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

PREFILL, DECODE = 8101, 8102


def serve(model: str, port: int, role: str, lease: int, more: list[str]) -> subprocess.Popen[bytes]:
    transfer: dict[str, object] = {"kv_connector": "NixlConnector", "kv_role": role}
    if role == "kv_producer":
        transfer["kv_connector_extra_config"] = {"kv_lease_duration": lease}
    else:
        transfer["kv_load_failure_policy"] = "fail"
    command = ["vllm", "serve", model, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "1024", "--max-num-seqs", "4", "--no-enable-prefix-caching"]
    command += ["--kv-transfer-config", json.dumps(transfer), *more]
    env = os.environ | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port + 1000)}
    return subprocess.Popen(command, env=env, start_new_session=True)


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        except (urllib.error.URLError, OSError):
            time.sleep(1)
        else:
            return
    raise SystemExit(f"the engine on port {port} ended")


def ask(port: int, prompt: list[int], **fields: object) -> dict[str, object]:
    body = {
        "model": "m",
        "prompt": prompt,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    } | fields
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def prefilled(prompt: list[int]) -> dict[str, object]:
    return ask(PREFILL, prompt, max_tokens=1, kv_transfer_params={"do_remote_decode": True})[
        "kv_transfer_params"
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--lengths", default="5,40,130,300")
    parser.add_argument("--lease", type=int, default=3, help="seconds")
    asked, more = parser.parse_known_args()
    engines = [
        serve(asked.model, PREFILL, "kv_producer", asked.lease, more),
        serve(asked.model, DECODE, "kv_consumer", asked.lease, more),
    ]
    try:
        for port, process in zip((PREFILL, DECODE), engines, strict=True):
            wait_until_healthy(port, process)
        draw = random.Random(0)
        prompts = [[draw.randrange(300, 1000) for _ in range(int(n))] for n in asked.lengths.split(",")]
        # by the other engine: blocks of this one would keep what a pull fails to write
        expected = [ask(PREFILL, prompt, max_tokens=16)["choices"][0]["token_ids"] for prompt in prompts]
        # something else runs there, as always in service: the blocks of a request have other numbers on the two engines
        other = [draw.randrange(300, 1000) for _ in range(200)]
        threading.Thread(target=ask, args=(DECODE, other), kwargs={"max_tokens": 800}, daemon=True).start()
        time.sleep(1)
        wrong = 0
        for prompt, want in zip(prompts, expected, strict=True):
            params = prefilled(prompt)
            if asked.late:
                time.sleep(3 * asked.lease)
                for _ in range(64):
                    ask(PREFILL, [draw.randrange(300, 1000) for _ in range(1000)], max_tokens=1)
            try:
                answer = ask(DECODE, prompt, max_tokens=16, kv_transfer_params=params)
            except urllib.error.HTTPError as error:
                print(f"prompt of {len(prompt)}: refused, status {error.code}", flush=True)
                continue
            got = answer["choices"][0]["token_ids"]
            wrong += got != want
            print(
                f"prompt of {len(prompt)}: {'equal' if got == want else f'DIFFERENT: {got} instead of {want}'}",
                flush=True,
            )
        print(f"{wrong} of {len(prompts)} answers differ, with status 200")
    finally:
        for process in engines:
            os.killpg(process.pid, signal.SIGTERM)
        for process in engines:
            process.wait()


if __name__ == "__main__":
    main()
