import msgspec
import numpy as np
import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.siglog import SignatureLog, pack_counts
from eldr.sim import traces
from eldr.simulate.population import draw_steps
from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic
from tests.support.records import make_record


@pytest.fixture(scope="session")
def captured():
    return traces.load()


@pytest.fixture(scope="session")
def step_time():
    return QWEN3_30B_MI300X.for_experts(32)


@pytest.fixture(scope="session")
def small():
    """Traffic of few, small layers."""
    source = Synthetic(
        WORKLOADS["task"], Geometry(32, 4), n_layers=3, calibration=120, requests=200, sampled=True
    )
    return source.traffic(0)


@pytest.fixture(scope="session")
def population(small):
    return small.requests


@pytest.fixture(scope="session")
def drawn(population):
    return draw_steps(population.logs[:5], (3, 32, 4), 400, np.random.default_rng(1))


@pytest.fixture
def write_log(tmp_path_factory, captured):
    """Write a log of captured records: kind after kind, or mixed."""

    def write(n, *, tokens=100, empty=(), silent=(), mixed=False, **fields):
        path = tmp_path_factory.mktemp("log")
        writer = SignatureLog(path, max_bytes=1 << 26, max_age=1e12, now=0.0)
        order = np.random.default_rng(0).permutation(len(captured)) if mixed else range(n)
        for at, number in enumerate(order[:n]):
            decode = captured.decode_counts(int(number), tokens)
            if at in empty:
                decode[1] = 0
            made = make_record(
                captured, at, int(number), tokens=tokens, **{"decode": pack_counts(decode)} | fields
            )
            if at in silent:
                made = msgspec.structs.replace(made, decode_exact=False)
            writer.append(made, now=0.0)
        writer.close()
        return path

    return write
