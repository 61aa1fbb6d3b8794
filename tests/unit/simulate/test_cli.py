"""The command, end to end."""

import json
import re
from concurrent.futures.process import BrokenProcessPool

import pytest
from click.testing import CliRunner

from eldr.cli import main
from eldr.siglog import SignatureLog
from eldr.simulate import cli
from tests.support.records import make_record

QUICK = ["--engines", "3", "--rate", "7.8", "--seconds", "6", "--seeds", "2", "--jobs", "1"]


def run(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


@pytest.mark.slow
def test_a_log_is_answered_with_a_report_and_a_table(write_log, tmp_path):
    log, out = write_log(768, mixed=True), tmp_path / "out.json"
    policies = "ELDR,MarginalUnion:learned=0.23,MarginalUnion:prior=0.23,ELDR:tau=0.2"
    more = f"--rate=25 --seconds=30 --seeds=4 --policies={policies} --json={out}"
    done = run("--log", log, *QUICK, *more.split())
    assert done.exit_code == 0, done.output
    assert "centroids from the older 384, simulated are the newer 384" in done.stdout
    said = " ".join(done.stdout.split())
    assert said.startswith("Set spec.router.policy: "), "the first line says what to do"
    assert re.search(r"Time per token against JSQ: mean \d+\.\d ms instead of \d+\.\d ms \(-", said)
    assert "give your accelerator's with --step-time" in said
    assert "MarginalUnion:prior=0.23 what the same ones do once centroids are active." in said
    report = json.loads(out.read_text())
    (setting,) = report["settings"]
    names = [policy["policy"] for policy in setting["policies"]]
    assert setting["best"] in names[1:]
    assert setting["best"] not in setting["level"]
    assert names[0] == "JSQ"
    assert names[-1] == "ELDR:tau=0.2"
    jsq = setting["policies"][0]
    assert jsq["change"]["tpot_mean"] == [0.0, 0.0]
    assert all(policy["change"]["active_per_token"][0] < 0 for policy in setting["policies"][1:])


@pytest.mark.costly
@pytest.mark.parametrize(
    "arguments",
    [("--workload", "captured", "--step-time", "5,100,20"), ("--workload", "language", "--jobs", "2")],
)
def test_workloads_without_a_log(arguments):
    policies = "Domain,MarginalUnion:prior=0.23,ELDR:min_candidates=2"
    done = run(*QUICK, *arguments, "--policies", policies, "--json", "-")
    assert done.exit_code == 0, done.output
    (setting,) = json.loads(done.stdout)["settings"]
    assert [policy["policy"] for policy in setting["policies"]] == ["JSQ", *policies.split(",")]


@pytest.mark.slow
def test_a_synthetic_workload_is_the_default():
    done = run(
        "--policies=MarginalUnion", "--rate=1", "--engines=2,3", "--seconds=5", "--seeds=1", "--jobs=1"
    )
    assert done.exit_code == 0, done.output
    assert "128 experts per layer, 8 per token" in done.stdout
    assert "2 engines, 1 requests/s: " in done.stdout.splitlines()[0]
    assert "3 engines, 1 requests/s, batch" in done.stdout
    assert "one seed gives no intervals" in done.stdout


def test_a_models_name_is_text(write_log):
    done = run("--log", write_log(140, model="[/bold]x[red]"), *QUICK, "--policies", "JSQ", "--seeds", "1")
    assert done.exit_code == 0, done.output
    assert "'[/bold]x[red]'" in done.stdout
    assert "no policy shortens" in done.stdout


def test_a_log_of_bursts_is_noticed(captured, tmp_path):
    writer = SignatureLog(tmp_path, max_bytes=1 << 26, max_age=1e12, now=0.0)
    for at in range(400):
        made = make_record(captured, at, at, time=1000.0 + at // 100 * 1000 + at % 100 * 0.01)
        writer.append(made, now=0.0)
    writer.close()
    done = run("--log", tmp_path, *QUICK, "--policies", "JSQ")
    assert done.exit_code == 0, done.output
    assert "the log's requests come in bursts" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--log", "/nosuch"], 2, "does not exist"),
        (["--workload", "poems"], 2, "'poems' is not one of"),
        (["--rate", "x"], 2, "expected numbers separated by commas"),
        (["--rate", "nan"], 2, "expected a finite number, at least"),
        (["--engines", "0"], 2, "expected a finite number, at least 1"),
        (["--engines", ""], 2, "expected numbers"),
        (["--step-time", "h100"], 2, "FIXED_MS"),
        (["--policies", "ELDR,best"], 2, "known are ELDR"),
        (["--last-minutes", "5"], 2, "there is no log"),
        (["--json", "/nosuch/x.json"], 2, "the folder /nosuch does not exist"),
        (["--workload", "captured", "--engines", "900"], 1, "cannot fill 900 clusters"),
        (["--workload", "captured", "--seconds", "0.001", "--rate", "1"], 1, "simulate longer"),
        (["--from-cluster", ""], 2, "--from-cluster: expected the name"),
        (["--model", "m"], 2, "--model: there is no log"),
        (["--seconds", "inf"], 2, "--seconds"),
        (["--rate", "1e9", "--engines", "2"], 1, "are too many"),
        (["--step-time", "0,0,1e-300", "--engines", "2"], 1, "are too many"),
        (["--policies", "ELDR:min_candidates=1.9"], 2, "expected a whole number for min_candidates"),
        (["--policies", "ELDR:tau=0.1:tau=0.2"], 2, "tau is given twice"),
    ],
)  # fmt: skip
def test_bad_input_is_a_clear_error(arguments, status, message):
    done = run("--seeds", "1", "--jobs", "1", *arguments)
    assert done.exit_code == status, done.output
    assert message in done.output.replace("\n", " ")
    assert "Traceback" not in done.output


def test_bad_logs_are_clear_errors(write_log, tmp_path):
    small, good = write_log(40), write_log(140)
    (tmp_path / "noise.siglog").write_bytes(b"\xff" * 999)
    for arguments, status, message in (
        (["--log", small], 1, "NotEnoughSamples: 20 records"),
        (["--log", tmp_path], 1, "NoLog"),
        (["--log", tmp_path / "noise.siglog"], 1, "is no signature log"),
        (["--log", good, "--model", "x"], 1, "hold records of m only"),
        (["--log", good, "--workload", "task"], 2, "choose one"),
        (["--log", good, "--policies", "Domain"], 2, "no kinds or labels"),
    ):
        done = run(*arguments)
        assert done.exit_code == status, done.output
        assert message in done.output.replace("\n", " ")


def test_a_process_that_was_killed_is_told_with_a_remedy(monkeypatch):
    def killed(*_):
        raise BrokenProcessPool

    monkeypatch.setattr(cli, "_run", killed)
    done = run("--rate", "5")
    assert done.exit_code == 1
    assert "try fewer --jobs" in done.output
    assert "Traceback" not in done.output
