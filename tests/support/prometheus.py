"""Debian's Prometheus, fetched once and unpacked into the user's cache; nothing is installed."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from eldr_kube.binaries import lock, user_cache
from eldr_kube.ports import free_port
from tests.support.files import put
from tests.support.processes import START_SECONDS, Server, wait_for

_MISSING = "no Prometheus here: install it, or apt-get and dpkg-deb with access to a Debian mirror"


class Prometheus(Server):
    """Scrapes targets every second."""

    def __init__(self, program: Path, folder: Path, targets: Mapping[str, Mapping[str, str]]) -> None:
        scraped = [
            {"targets": [url.removeprefix("http://")], "labels": dict(labels)}
            for url, labels in targets.items()
        ]
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "eldr", "honor_labels": True, "static_configs": scraped}],
        }
        put(folder / "prometheus.yml", json.dumps(config).encode())
        port = free_port()
        arguments = [
            str(program),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder}",
        ]
        arguments += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        super().__init__(arguments, f"http://127.0.0.1:{port}", log=folder / "prometheus.log")

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and values of a query."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=120).json()
        assert answer["status"] == "success", answer
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    def value(self, query: str) -> float | None:
        """Return the one value of a query; None where there is no data."""
        found = self.series(query)
        assert len(found) <= 1, found
        return found[0][1] if found else None


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[str, Mapping[str, str]]) -> Iterator[Prometheus]:
    """Start it; ``targets`` maps addresses to the labels of their series."""
    process = Prometheus(program("prometheus"), folder, targets)
    try:
        wait_for(lambda: process.ready("/-/ready"), "Prometheus", START_SECONDS)
        yield process
    finally:
        process.stop()


def program(name: str) -> Path:
    """Return ``prometheus`` or ``promtool``; skip the test where neither this machine nor Debian has it."""
    if found := shutil.which(name):
        return Path(found)
    cache = user_cache() / "prometheus"
    cache.mkdir(parents=True, exist_ok=True)
    with lock(cache / "lock"):
        unpacked = cache / "unpacked" / "usr" / "bin" / name
        if not unpacked.exists():
            try:
                subprocess.run(
                    ["apt-get", "download", "prometheus"], cwd=cache, check=True, capture_output=True
                )
                (package,) = cache.glob("prometheus_*.deb")
                subprocess.run(
                    ["dpkg-deb", "-x", package, cache / "unpacked"], check=True, capture_output=True
                )
            except (OSError, subprocess.CalledProcessError, ValueError) as error:
                pytest.skip(f"{_MISSING} ({error})")
    return unpacked
