"""Real engines, shared by all tests here, and routers in front of them. ``make e2e-vllm`` runs them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eldr.engine.install import copy
from eldr_tiny_moe.client import ReferenceClient
from tests.support.router import Router, router
from tests.vllm.client import Answer, ask
from tests.vllm.comparison import clear
from tests.vllm.engines import GPU_MODE, NAME, Engine, Setup, wait_for
from tests.vllm.fleet import Fleet
from tests.vllm.prompts import ALL, FRESH, Case

ENV = "ELDR_VLLM"
"""Names the environment made by ``hack/vllm/install``."""
LEASE = 300  # the default of the router and of the operator: on a busy machine a first pull takes long
SHORT_LEASE = 5
SETUPS = {
    "plain": Setup(role="plain"),
    "p": Setup(role="prefill", lease=LEASE),
    "p-short": Setup(role="prefill", lease=SHORT_LEASE, blocks=80),
    # one answer of the longest kind fills it
    "d0": Setup(role="decode", lease=LEASE, blocks=72),
    "d-gpu-mode": Setup(role="decode", lease=LEASE, blocks=72, mode=GPU_MODE),
    "d1": Setup(role="decode", lease=LEASE, children=("Gate",), arguments=("--shutdown-timeout", "120")),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(ENV):
        # first those with engines of their own, before the fleet is up; of the fleet's those that leave all engines alive
        turns = {"test_clients.py": 1, "test_outputs.py": 1, "test_failures.py": 2, "test_leases.py": 2}
        items.sort(key=lambda item: turns.get(item.path.name, 0))
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.skip(reason="needs real engines: run `make e2e-vllm`"))


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, plugin: Path) -> Iterator[Fleet]:
    """All engines, with the plug-in beside the transport as in a pod; none runs before a test asks for it."""
    folder = tmp_path_factory.mktemp("engines")
    program = Path(os.environ[ENV])
    engines = Fleet(
        Engine(name, setup if setup.role == "plain" else replace(setup, plugin=plugin), program, folder)
        for name, setup in SETUPS.items()
    )
    try:
        yield engines
    finally:
        engines.stop()


@pytest.fixture(scope="session")
def reference(environment: Path) -> Iterator[ReferenceClient]:
    """The trained model as transformers computes it."""
    with ReferenceClient(environment) as found:
        yield found


@pytest.fixture(scope="session")
def expected(fleet: Fleet, reference: ReferenceClient) -> dict[str, list[int]]:
    """The token ids that an engine without any transfer gives, by the case's name."""
    (plain,) = fleet.up("plain")
    answers = {}
    for case in ALL:
        answer = ask(plain.url, case, stream=False)
        assert answer.outcome == "ok", (case.name, answer)
        assert len(answer.ids) == case.tokens
        clear(reference, answer.prompt, answer.ids)
        answers[case.name] = answer.ids
    plain.stop()
    return answers


@pytest.fixture(scope="session")
def unused() -> Iterator[Case]:
    """Prompts that no engine has seen."""
    return iter(FRESH)


@pytest.fixture
def fresh(unused: Iterator[Case]) -> Callable[[], Case]:
    """Return the next prompt that no engine has seen."""
    return lambda: next(unused)


@pytest.fixture
def correct(expected: dict[str, list[int]]) -> Callable[[Case, Answer], None]:
    """Assert that an answer is complete and exactly the plain engine's."""

    def check(case: Case, answer: Answer) -> None:
        assert answer.outcome == "ok", (case.name, answer)
        assert answer.ids == expected[case.name], case.name

    return check


Serve = Callable[..., contextlib.AbstractContextManager[Router]]


@pytest.fixture
def serve(fleet: Fleet, expected: dict[str, list[int]], tmp_path: Path) -> Serve:
    """Start a router in front of some of the fleet; afterwards nothing may be left in flight anywhere."""

    @contextlib.contextmanager
    def run(*names: str, options: tuple[str, ...] = (), **fields) -> Iterator[Router]:
        engines = fleet.up(*names)
        urls = {engine.name: engine.url for engine in engines}
        fields = {"model": NAME, "lease_seconds": LEASE, **fields}
        with router(tmp_path, urls, *options, **fields) as started:
            yield started
            wait_for(lambda: not started.in_flight(), "the router's leases to return", 60, started.loads)
            for engine in engines:
                if engine.running():
                    wait_for(lambda e=engine: not e.requests(), f"{engine.name} to be idle", 60)

    return run


@pytest.fixture
def background() -> Iterator[concurrent.futures.Executor]:
    """Threads for requests that wait."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        yield pool


_NEAR_TIES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def near_ties(request: pytest.FixtureRequest) -> list[str]:
    """Return the list of tokens that an engine chose otherwise because two logits are all but equal; shown at the end."""
    return request.config.stash.setdefault(_NEAR_TIES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _NEAR_TIES in config.stash:
        found = config.stash[_NEAR_TIES]
        terminalreporter.section(f"{len(found)} near ties against the reference")
        for line in found:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def environment() -> Path:
    """Return the environment that holds vLLM and torch."""
    return Path(os.environ[ENV])


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the plug-in, copied as an init container copies it."""
    folder = tmp_path_factory.mktemp("plugin")
    copy(folder)
    return folder
