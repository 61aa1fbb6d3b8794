"""Real processes for tests: start, wait until they serve, end by id."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx

from eldr.addresses import authority
from eldr_kube.ports import free_port

ELDR = Path(sys.executable).parent / "eldr"
START_SECONDS = 60.0
T = TypeVar("T")


def wait_for(
    condition: Callable[[], T],
    what: str,
    seconds: float = 60.0,
    show: Callable[[], object] | None = None,
    every: float = 0.25,
) -> T:
    """Poll until the condition is true; fail with `what`, and with what `show` returns, when it never is.

    Looks come at once, then after a tenth of the time that has passed, at most `every` seconds: a look may cost as much as what
    it waits for.
    """
    began = time.monotonic()
    end = began + seconds
    while True:
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > end:
            seen = f"; last seen: {show()}" if show else ""
            raise AssertionError(f"timed out after {seconds:.0f} s waiting for {what}{seen}")
        time.sleep(min(every, max(0.02, (now - began) / 10)))


class Server:
    """A process that serves HTTP on a port of its own; what it prints goes to `log`, if it prints much."""

    def __init__(
        self, arguments: list[str], url: str, env: dict[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.url = url
        with log.open("a") if log else contextlib.nullcontext(subprocess.PIPE) as out:
            self.process = subprocess.Popen(
                arguments, stdout=out, stderr=subprocess.STDOUT, text=True, env=env
            )

    def ready(self, path: str = "/health") -> bool:
        if self.process.poll() is not None:
            raise AssertionError(
                f"{self.process.args} exited with {self.process.returncode}: {self.output()}"
            )
        try:
            return httpx.get(self.url + path, timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def output(self) -> str:
        return self.process.stdout.read() if self.process.stdout else ""

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@contextlib.contextmanager
def engine(role: str, *options: str, model: str = "m", host: str = "127.0.0.1") -> Iterator[Server]:
    """A simulated engine."""
    port = free_port()
    arguments = [str(ELDR), "engine-sim", "--role", role, "--host", host, "--port", str(port)]
    server = Server([*arguments, "--model", model, *options], f"http://{authority(host, port)}")
    try:
        wait_for(server.ready, f"{role} engine", START_SECONDS)
        yield server
    finally:
        server.stop()
