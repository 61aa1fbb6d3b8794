"""The command, end to end."""

import json

import pytest
from click.testing import CliRunner

from eldr.cli import main

QUICK = ["--engines", "3", "--rate", "7.8", "--seconds", "6", "--seeds", "2"]


def run(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


@pytest.mark.slow
def test_a_log_is_answered_with_a_report_and_a_table(write_log, tmp_path):
    log, out = write_log(768, mixed=True), tmp_path / "out.json"
    more = ["--rate=25", "--seconds=30", "--seeds=4"]
    done = run("--log", log, *QUICK, *more)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "Set spec.router.policy: MarginalUnion.", "the first line says what to do"
    assert "centroids from the older 384, simulated are the newer 384" in done.stdout
    assert "give your accelerator's with --step-time" in done.stdout
    assert run("--log", log, *QUICK, *more, "--json", out).stdout == ""
    report = json.loads(out.read_text())
    rows = {row["policy"]: row for row in report["policies"]}
    assert list(rows) == ["JSQ", "ELDR", "MarginalUnion, no centroids", "MarginalUnion"]
    assert report["recommended"] in rows
    assert rows["JSQ"]["change"]["tpot_mean"] == [0.0, 0.0]
    assert all(row["change"]["active_per_token"][0] < 0 for name, row in rows.items() if name != "JSQ")


@pytest.mark.slow
def test_engines_that_draft_take_fewer_steps_with_more_experts(write_log):
    found = []
    for more in ([], ["--drafts", "3", "--accepted", "0.5"]):
        done = run("--log", write_log(200), *QUICK, "--policy", "JSQ", *more, "--json", "-")
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
    (plain,), (drafted,) = (one["policies"] for one in found)
    assert [one["drafts"] for one in found] == [0, 3]
    assert drafted["active_per_token"] > plain["active_per_token"]
    assert drafted["batch"] < plain["batch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--rate", "nan"], 2, "--rate"),
        (["--step-time", "0,0,1e-300"], 1, "expected constants"),
        (["--engines", "900"], 1, "cannot fill 900 clusters"),
        (["--seconds", "0.001", "--rate", "1"], 1, "simulate longer"),
        (["--rate", "1e9", "--engines", "2"], 1, "are too many"),
        (["--from-cluster", "demo"], 2, "name a log with --log, or a deployment"),
    ],
)
def test_bad_input_is_a_clear_error(write_log, arguments, status, message):
    done = run("--log", write_log(140), "--seeds", "1", *arguments)
    assert done.exit_code == status, done.output
    assert message in done.output.replace("\n", " ")
    assert "Traceback" not in done.output
