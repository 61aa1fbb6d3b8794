"""Deployments whose engines spread experts over ranks: what is not simulated of them is said."""

import json
import math

import pytest
from click.testing import CliRunner

from eldr.cli import main
from eldr.simulate import cluster
from eldr.simulate.cluster import Deployment
from eldr.simulate.effect import in_effect

STEP_TIME = {"fixed": 0.02, "per_expert": 1e-3, "per_request": 4e-5, "windows": 9}
SPREAD = {"expert": "Enabled", "data": 1, "redundantExperts": 0, "balance": "Tokens"}


def resource(gpus=4, **parallelism):
    spec = {
        "model": {"name": "m"},
        "decode": {"replicas": 2, "gpus": gpus, "parallelism": SPREAD | parallelism},
    }
    return {"metadata": {"name": "demo"}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "ranks"),
    [
        (resource(), 4),
        (resource(data=2), 4),
        (resource(gpus=0, tensor=2, data=3), 6),
        (resource(gpus=0, data=2), 2),
        (resource(expert="Disabled"), 1),
        ({"metadata": {"name": "demo"}, "spec": {"decode": {"gpus": 4}}}, 1),
        ({"metadata": {"name": "demo"}, "spec": {}}, 1),
    ],
)
def test_ranks_that_experts_are_spread_over(found, ranks):
    notes = in_effect(found, []).notes
    assert len(notes) == (ranks > 1)
    if notes:
        assert f"over {ranks} ranks, which is not simulated" in notes[0]


@pytest.mark.parametrize(
    ("parallelism", "named"),
    [
        ({"redundantExperts": 16}, "redundantExperts 16"),
        ({"balance": "Activations"}, "balance Activations"),
        (
            {"redundantExperts": 8, "balance": "Activations"},
            "redundantExperts 8 and balance Activations",
        ),
    ],
)
def test_copies_and_their_balance_are_said_to_be_left_out(parallelism, named):
    *_, note = in_effect(resource(**parallelism), []).notes
    assert f"{named} of its engines is not simulated" in note


@pytest.fixture
def simulate(monkeypatch, write_log):
    """Run the command on a deployment of this log."""
    log = write_log(200, mixed=True)

    class Fake:
        def __init__(self, *_):
            pass

        def find(self, name, _):
            return Deployment("team", resource(redundantExperts=16), ({"step_time": STEP_TIME},), (log,), ())

    monkeypatch.setattr(cluster, "Cluster", Fake)
    quick = ["--rate", "9", "--seconds", "4", "--seeds", "1", "--json", "-"]
    return lambda *more: CliRunner().invoke(
        main, ["simulate", "--from-cluster", "demo", *quick, "--policies", "JSQ", *more]
    )


def test_the_report_says_what_is_not_simulated(simulate):
    done = simulate()
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert sum("over 4 ranks, which is not simulated" in note for note in report["notes"]) == 1
    assert any("redundantExperts 16 of its engines" in note for note in report["notes"])
    assert math.isclose(report["step_time"]["per_expert"], 1e-3)
