"""Fixtures that tests of several folders share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from eldr_kube import left
from eldr_kube.binaries import BinariesUnavailableError, binaries
from eldr_kube.cluster import Cluster
from tests.support.started import Started

_numbers = itertools.count()
_started = Started()
_BEFORE = pytest.StashKey[int]()
_OF_PROCESSES = [Path(__file__).parent / name for name in ("e2e", "kube", "vllm")]

# A machine under load is slow, not wrong. The examples are those of every run, so that a change is judged by what it does;
# `pytest --hypothesis-profile=explore` looks for others.
settings.register_profile("eldr", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("eldr")


def _programs() -> None:
    try:
        binaries()
    except BinariesUnavailableError as error:
        pytest.skip(f"no control plane here: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Keep what is in the cluster of a test that fails, while it is there."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and cluster is not None:
        folder = item.config.rootpath / "out" / "failed" / re.sub(r"[^\w.-]+", "-", item.nodeid)
        report.sections.append((f"Left in the cluster ({call.when})", left.keep(cluster, folder)))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remember how many processes were started before a test and its fixtures."""
    item.stash[_BEFORE] = _started.count
    return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark folders all of whose tests start processes."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in _OF_PROCESSES):
            item.add_marker("process")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail a test that has started a process and does not say so, once its fixtures are gone."""
    marks = {mark.name for mark in item.iter_markers()}
    if not marks & {"process", "kube"} and _started.count > item.stash[_BEFORE]:
        pytest.fail("it starts processes: mark it so, pytest.mark.process", pytrace=False)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with one node whose pods really run."""
    _programs()
    with Cluster(audit=True) as started:
        yield started


@pytest.fixture(scope="session")
def api_server() -> Iterator[Cluster]:
    """A control plane without nodes: fast, for tests that play the kubelet themselves."""
    _programs()
    with Cluster(agent=False, audit=True) as started:
        yield started


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of its own in ``cluster``; its pods end while the next test runs."""
    name = f"test-{next(_numbers)}"
    cluster.create_namespace(name)
    yield name
    cluster.delete_namespace(name)


@pytest.fixture
def bare_namespace(api_server: Cluster) -> str:
    """A namespace of its own in ``api_server``."""
    name = f"test-{next(_numbers)}"
    api_server.create_namespace(name)
    return name
