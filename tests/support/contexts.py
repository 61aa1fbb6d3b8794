"""A plug-in of pytest for `hack/coverage`: it notes which file of tests runs a line, here and in processes that tests start."""

import os

import coverage
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Name the file of a test before its fixtures begin."""
    name = item.nodeid.partition("::")[0]
    os.environ["ELDR_TEST"] = name  # hack/coverage.ini reads it in a process that the test starts
    if running := coverage.Coverage.current():
        running.switch_context(name)
