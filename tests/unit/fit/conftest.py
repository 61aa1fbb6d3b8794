import numpy as np
import pytest

from eldr.siglog import Record
from eldr.sim import traces
from tests.support import records as records_of


@pytest.fixture(scope="session")
def captured():
    return traces.load()


@pytest.fixture(scope="session")
def make_record(captured):
    def make(number: int, record: int, tokens: int = 100, **fields) -> Record:
        return records_of.make_record(captured, number, record, tokens=tokens, **fields)

    return make


@pytest.fixture(scope="session")
def records(captured, make_record):
    fitting, _ = captured.split()
    return [make_record(n, r) for n, r in enumerate(np.random.default_rng(0).permutation(fitting))]


MIX, OTHER_MIX = ("fr", "ru", "manual", "legal"), ("en", "zh", "python", "changelog")


@pytest.fixture(scope="session")
def mixed(captured, make_record):
    """Draw ``n`` records of some kinds, for 4 engines of 14 requests each."""

    def draw(n, seed, kinds=MIX):
        rows = np.random.default_rng(seed).choice(captured.split(kinds)[0], n)
        return [make_record(at, int(row), in_flight=14) for at, row in enumerate(rows)]

    return draw
