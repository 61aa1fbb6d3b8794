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
