"""The queries of the autoscaling example, run by Prometheus over a router and an engine under load."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from pathlib import Path

import pytest
import yaml

from tests.support.processes import engine, wait_for
from tests.support.prometheus import prometheus
from tests.support.router import router

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "autoscaling.yaml"
CLIENTS = 12


def queries() -> dict[str, str]:
    found = {}
    for scaled in yaml.safe_load_all(EXAMPLE.read_text()):
        (trigger,) = scaled["spec"]["triggers"]
        found[scaled["spec"]["scaleTargetRef"]["name"]] = trigger["metadata"]["query"]
    return found


@pytest.mark.costly
def test_queries_of_the_example_follow_load(tmp_path):
    asked = queries()
    assert asked.keys() == {"qwen3-prefill", "qwen3-decode"}
    with (
        engine("prefill", "--speed", "100") as p,
        engine("decode", "--speed", "3") as d,
        router(tmp_path, {"p0": p.url, "d0": d.url}) as r,
    ):
        targets = {
            r.admin: {"namespace": "default", "pod": "qwen3-prefill-abc"},
            d.url: {"namespace": "default", "pod": "qwen3-decode-0"},
        }
        (tmp_path / "prometheus").mkdir()
        with (
            prometheus(tmp_path / "prometheus", targets) as p8s,
            concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool,
        ):

            def value(name: str) -> float | None:
                return p8s.value(asked[name])

            def load(client: int) -> set[str]:
                # It lasts until it is seen: a scrape a second misses a burst. Prefill is the slower part, so that prompts wait there,
                # and no prompt is in a cache.
                return {
                    r.ask(f"prompt {client} {number} " * 400, 200)[0]
                    for number in itertools.takewhile(lambda _: not seen.is_set(), itertools.count())
                }

            wait_for(lambda: (value("qwen3-prefill"), value("qwen3-decode")) == (0, 0), "idle figures")
            seen = threading.Event()
            clients = [pool.submit(load, client) for client in range(CLIENTS)]
            try:
                # an engine that is busy may miss a scrape, and then there is no value
                wait_for(
                    lambda: (value("qwen3-prefill") or 0) > 0,
                    "prompts that wait",
                    show=lambda: value("qwen3-prefill"),
                )
                wait_for(
                    lambda: (value("qwen3-decode") or 0) > 0,
                    "KV blocks in use",
                    show=lambda: value("qwen3-decode"),
                )
            finally:
                seen.set()
            assert set().union(*(client.result() for client in clients)) == {"ok"}
            wait_for(lambda: (value("qwen3-prefill"), value("qwen3-decode")) == (0, 0), "idle figures again")
