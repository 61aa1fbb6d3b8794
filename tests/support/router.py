"""The router as users run it: a process with a worker file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from eldr import contract
from eldr.addresses import authority
from eldr_kube.ports import free_port
from tests.support.files import put
from tests.support.processes import ELDR, START_SECONDS, Server, wait_for

TOKEN = "secret"
AUTH = {"authorization": f"Bearer {TOKEN}"}


class Router(Server):
    """A router process; an engine's role is told by the first letter of its name."""

    def __init__(
        self,
        folder: Path,
        engines: Mapping[str, str],
        *options: str,
        model: str = "m",
        admin_port: int = 0,
        log: Path | None = None,
        under: tuple[str, ...] = (),
        host: str = "127.0.0.1",
        **fields,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._workers = folder / "workers.yaml"
        self._fields = {"model": model, **fields}
        self.configure(engines)
        port, admin = free_port(), admin_port or free_port()
        self.admin = f"http://{authority(host, admin)}"
        arguments = [
            *under,
            str(ELDR),
            "router",
            "--workers",
            str(self._workers),
            "--log-dir",
            str(folder / "log"),
        ]
        arguments += ["--host", host, "--port", str(port), "--admin-host", host, "--admin-port", str(admin)]
        arguments += ["--log-level", "warning", *options]
        env = {**os.environ, contract.ENV_ADMIN_TOKEN: TOKEN}
        super().__init__(arguments, f"http://{authority(host, port)}", env, log)

    def configure(self, engines: Mapping[str, str], **fields) -> None:
        """Write the worker file, with other settings if they are named; the router takes it within a second."""
        self._fields |= fields
        entries = {
            role: [{"name": name, "url": url} for name, url in engines.items() if name[0] == role[0]]
            for role in ("prefill", "decode")
        }
        put(self._workers, json.dumps({**self._fields, **entries}).encode())

    def state(self) -> dict:
        return httpx.get(self.admin + contract.PATH_STATE, headers=AUTH, timeout=120).json()

    def loads(self) -> dict[str, int]:
        """Requests in flight by engine."""
        state = self.state()
        return {e["name"]: e["in_flight"] for e in state["prefill"] + state["decode"]}

    def in_flight(self) -> int:
        return sum(self.loads().values())

    def counter(self, name: str, **labels: str) -> float:
        """Sum of a counter's series with these labels."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        total = 0.0
        for series, value in self.state()["counters"].items():
            base, _, rest = series.partition("{")
            if base == f"eldr_router_{name}_total" and wanted <= set(rest.rstrip("}").split(",")):
                total += value
        return total

    def ask(self, prompt: str, tokens: int = 16, **fields) -> tuple[str, str]:
        """Return an outcome (ok, error, cut or a status) and the text."""
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, **fields}
        said, ended = "", False
        try:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=120) as got:
                if got.status_code != 200:
                    return str(got.status_code), got.read().decode()
                for line in got.iter_lines():
                    if line == "data: [DONE]":
                        ended = True
                    elif line:
                        event = json.loads(line.removeprefix("data: "))
                        if "error" in event:
                            return "error", said
                        said += event["choices"][0]["text"]
        except httpx.TransportError:
            return "cut", said
        return ("ok" if ended else "silent cut"), said


@contextlib.contextmanager
def router(folder: Path, engines: Mapping[str, str], *options: str, **fields) -> Iterator[Router]:
    process = Router(folder, engines, *options, **fields)
    try:
        wait_for(lambda: process.ready("/ready"), "router", START_SECONDS)
        yield process
    finally:
        process.stop()
