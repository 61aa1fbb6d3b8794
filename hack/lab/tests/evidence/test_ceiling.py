"""The clairvoyant search, where its best schedule is known."""

import numpy as np
import pytest

from eldr.core.step_time import StepTime
from eldr.simulate.engine import Limits
from eldr.simulate.workload import Window, Workload
from eldr_lab.evidence.ceiling import Replayed, best_schedule, prove
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.run import Pool, simulate
from eldr_lab.synthetic.study import Load

LAW = StepTime(fixed=0.01, per_expert=0.01, per_request=0.0001, n_experts=4)
POOL = Pool((LAW, LAW), Limits(), sampled=False)


@pytest.fixture
def two_kinds() -> tuple[Population, Load]:
    """Eight requests of two kinds that share no expert, all at once."""
    label = np.arange(8) % 2
    prefill = np.zeros((8, 1, 4), dtype=np.uint16)
    for request, kind in enumerate(label):
        prefill[request, 0, 2 * kind : 2 * kind + 2] = 10
    logs = np.where(prefill.reshape(8, 4) > 0, -50.0, -1e-6).astype(np.float32)
    population = Population(
        prefill=prefill, prompt_tokens=np.full(8, 10), logs=logs, steps=None, label=label, labels=("a", "b"),
        shares=(0.5, 0.5), output_tokens=None, top_k=2,
    )  # fmt: skip
    arrival = np.linspace(0.0, 0.01, 8)
    workload = Workload(arrival, arrival, np.arange(8), np.full(8, 400), np.ones(8, dtype=np.bool_))
    return population, Load(1.0, Window(0.0, 1.0, 1.0), workload)


def run(population, load, schedule):
    return simulate(POOL, population, load.workload, load.window, Replayed(schedule))


def test_a_schedule_is_replayed_request_by_request(two_kinds):
    schedule = [0, 0, 1, 1, 1, 0, 1, 0]
    assert run(*two_kinds, schedule).worker.tolist() == schedule


def test_a_run_that_left_its_schedule_is_no_ceiling(two_kinds):
    population, load = two_kinds
    ran = run(population, load, [0, 1] * 4)
    prove(Replayed([0, 1] * 4), load.workload, ran)
    with pytest.raises(SystemExit, match="8 requests are elsewhere"):
        prove(Replayed([1, 0] * 4), load.workload, ran)


def test_kinds_that_share_no_expert_are_taken_apart(two_kinds):
    population, load = two_kinds
    mixed = run(population, load, [0, 0, 1, 1, 0, 0, 1, 1])
    apart = run(population, load, [0, 1] * 4)
    assert apart.measures.tpot_mean < 0.8 * mixed.measures.tpot_mean
    found = best_schedule(POOL, population, load, mixed, seed=0)
    assert found.tpot_mean == pytest.approx(apart.measures.tpot_mean)


def test_a_schedule_that_is_best_already_stays(two_kinds):
    population, load = two_kinds
    apart = run(population, load, [0, 1] * 4)
    assert best_schedule(POOL, population, load, apart, seed=0).tpot_mean == pytest.approx(
        apart.measures.tpot_mean
    )
