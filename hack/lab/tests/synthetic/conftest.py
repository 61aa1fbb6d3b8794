import numpy as np
import pytest

from eldr.sim import traces
from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic
from eldr_lab.synthetic.population import draw_steps


@pytest.fixture(scope="session")
def captured():
    return traces.load()


@pytest.fixture(scope="session")
def population():
    """Requests of few, small layers."""
    source = Synthetic(
        WORKLOADS["task"], Geometry(32, 4), n_layers=3, calibration=120, requests=200, sampled=True
    )
    return source.traffic(0).requests


@pytest.fixture(scope="session")
def drawn(population):
    return draw_steps(population.logs[:5], (3, 32, 4), 400, np.random.default_rng(1))
