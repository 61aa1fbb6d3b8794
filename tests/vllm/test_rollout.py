"""Both roles of an EldrDeployment replaced under traffic, on the embedded control plane: real vLLM, and no request fails."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

import httpx
import pytest

from eldr import contract
from tests.vllm.deployed import TOKENS, Deployed, deployed, spec
from tests.vllm.engines import wait_for

pytestmark = pytest.mark.long

ROLL_SECONDS = 400
CLIENTS = 3
SPEC = spec(decode={"replicas": 2})


class Traffic:
    """Clients that ask for one chat after another."""

    def __init__(self, deployment: Deployed) -> None:
        self._deployment = deployment
        self._numbers, self._ended = itertools.count(), threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        self.outcomes: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def until_more(self) -> None:
        """Wait until each client has had an answer more."""
        before = self.outcomes["ok"]
        wait_for(lambda: self.outcomes["ok"] > before + CLIENTS, "answers", ROLL_SECONDS)

    def _run(self) -> None:
        while not self._ended.is_set():
            number = next(self._numbers)
            try:
                answer = self._deployment.chat(number)
                is_complete = answer["usage"]["completion_tokens"] == TOKENS
                self.outcomes["ok" if is_complete else f"chat {number}: cut"] += 1
            except httpx.ConnectError:
                self.outcomes["ended before it was asked"] += (
                    1  # as a Service does, the next one asks another
                )
            except (AssertionError, httpx.HTTPError, LookupError) as error:
                self.outcomes[f"chat {number}: {error!r}"] += 1


@pytest.fixture(scope="module")
def pair() -> Iterator[Deployed]:
    with deployed("pair", SPEC) as found:
        found.until("Ready", status="True")
        yield found


def names(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


@pytest.mark.parametrize("role", [contract.ROLE_DECODE, contract.ROLE_PREFILL])
def test_engines_are_replaced_and_no_request_fails(pair, role):
    before = names(pair.pods(role))
    with Traffic(pair) as traffic:
        traffic.until_more()
        pair.patch({role: {"env": [{"name": "NEXT", "value": "1"}]}})
        wait_for(
            lambda: len(now := names(pair.pods(role))) == len(before) and not now & before,
            "engines of the new revision",
            ROLL_SECONDS,
            pair.show,
        )
        traffic.until_more()
    assert traffic.outcomes.keys() <= {"ok", "ended before it was asked"}, traffic.outcomes
    pair.until("Ready", status="True")
