"""Engines whose step-time model is known, instead of real ones, and requests for them."""

from contextlib import contextmanager

import numpy as np
import pytest

from eldr.core.step_time import StepTime
from eldr_lab.steps import traffic
from eldr_lab.steps.engines import Recorded
from eldr_lab.steps.machine import N_EXPERTS, TOP_K, WIDTH, Step

LAW = StepTime(2e-3, 0.5e-3, 0.3e-3, N_EXPERTS)
LAYERS, KINDS = 2, ("even", "odd")
REFERENCE = 0.03


def experts_of(record, rng, n):
    """The kind of a request is its number's parity; each has half of the experts to itself."""
    return rng.random((n, LAYERS, N_EXPERTS // 2)).argsort(axis=-1)[..., :TOP_K] * 2 + record % 2


class Engine:
    """The first engine and its forks. A prompt is the number of its record; ``steps_left`` is shared."""

    def __init__(self, steps_left=None):
        self.steps_left = steps_left or [10**9]
        self.running: dict[str, tuple[int, int]] = {}
        self.rng = np.random.default_rng(0)

    @contextmanager
    def forks(self, n):
        yield [Engine(self.steps_left) for _ in range(n)]

    def about(self):
        return {"vllm": "0.32.0", "device": "cpu", "dtype": "float32", "width": WIDTH, "eager": True, "threads": 1}  # fmt: skip

    def reference(self):
        return REFERENCE

    def add(self, name, prompt, tokens, seed):
        self.running[name] = (prompt[0], tokens)

    def step(self):
        self.steps_left[0] -= 1
        if not self.steps_left[0]:
            raise KeyboardInterrupt
        chosen = np.stack([experts_of(record, self.rng, 1)[0] for record, _ in self.running.values()])
        experts = [len(np.unique(chosen[:, layer])) for layer in range(LAYERS)]
        names = list(self.running)
        ended = [name for name, (_, left) in self.running.items() if left == 1]
        self.running = {name: (r, left - 1) for name, (r, left) in self.running.items() if left > 1}
        active = sum(experts) / LAYERS
        return Step(LAW.seconds(len(names), active), len(names), experts, names, ended)


@pytest.fixture(scope="session")
def requests():
    """Requests as a real engine would have recorded them."""
    rng = np.random.default_rng(1)

    def recorded(n):
        return [
            Recorded(
                np.apply_along_axis(np.bincount, 0, experts_of(at, rng, 65).transpose(0, 2, 1).reshape(-1, LAYERS), minlength=N_EXPERTS).T,
                experts_of(at, rng, 32),
            )
            for at in range(n)
        ]  # fmt: skip

    n = 64
    lengths = rng.integers(8, 24, n)
    population = traffic._population(recorded(n), np.arange(n) % 2, KINDS, lengths)
    return traffic.Traffic(traffic._samples(recorded(48)), population, [[at] for at in range(n)], KINDS)


@pytest.fixture
def engines():
    """The class of engines, to be given the number of steps after which the measurement is killed."""
    return Engine
