import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.sim import traces
from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic


@pytest.fixture(scope="session")
def captured():
    return traces.load()


@pytest.fixture(scope="session")
def law():
    return QWEN3_30B_MI300X.for_experts(32)


@pytest.fixture(scope="session")
def small():
    """Traffic of few, small layers."""
    return Synthetic(
        WORKLOADS["task"], Geometry(32, 4), n_layers=3, calibration=120, requests=200, sampled=True
    ).traffic(0)


@pytest.fixture(scope="session")
def population(small):
    return small.requests
