import numpy as np
import pytest

from eldr.siglog import Record, pack_counts
from eldr.sim import traces


@pytest.fixture(scope="session")
def captured():
    return traces.load()


@pytest.fixture(scope="session")
def make_record(captured):
    def make(number: int, record: int, tokens: int = 100, **fields) -> Record:
        values = {
            "request_id": f"eldr-00000000-{number:x}",
            "time": 1000.0 + number,
            "model": "m",
            "n_layers": 4,
            "n_experts": 64,
            "top_k": 4,
            "prompt_tokens": int(captured.prompt_tokens[record]),
            "exact": True,
            "prefill": pack_counts(captured.prefill_counts[record]),
            "worker": "d0",
            "slot": 0,
            "policy": "JSQ",
            "in_flight": 9,
            "decode": pack_counts(captured.decode_counts(record, tokens)),
            "decode_tokens": tokens,
            "decode_exact": True,
        }
        return Record(**values | fields)

    return make


@pytest.fixture(scope="session")
def records(captured, make_record):
    fitting, _ = captured.split()
    return [make_record(n, r) for n, r in enumerate(np.random.default_rng(0).permutation(fitting))]
