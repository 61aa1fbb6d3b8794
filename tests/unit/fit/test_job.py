"""One EldrFit's run against an API server of a dictionary: which records it takes, and what it reports."""

import base64
import json
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.fit import cli, job
from eldr.fit.before import Older
from eldr.fit.job import Job, run
from eldr_operator.drift.counts import read_baseline

JOB = Job(
    namespace="n",
    deployment="d",
    fit="f",
    fit_uid="u",
    k=4,
    model="m",
    lookback=None,
    since=None,
    before=None,
    min_samples=None,
    seed=1,
    token="t",
)


@pytest.fixture
def world(monkeypatch, mixed):
    """Run jobs on 300 records: half of them of today, half of yesterday."""
    maps, records = {}, mixed(300, 0)
    now = time.time()
    times = [now - 86_400 + n if n < 150 else now - 400 + n for n in range(300)]

    class Cluster:
        def __init__(self, *_, **__):
            pass

        def router_urls(self, _):
            return ["http://router"]

        def config_map(self, name):
            return maps.get(name)

        def create(self, name, *, data=None, binary=None):
            encoded = {key: base64.b64encode(value) for key, value in (binary or {}).items()}
            maps[name] = {"data": data, "binaryData": encoded}

    def read(_urls, _token, _unread, _trust):
        return (msgspec.structs.replace(record, time=at) for record, at in zip(records, times, strict=True))

    monkeypatch.setattr(job, "Cluster", Cluster)
    monkeypatch.setattr(job, "from_routers", read)
    return maps


def fitted(**changes):
    """Return the report of a job."""
    return run(replace(JOB, **changes), lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ({}, 300),
        ({"since": 3600}, 150),
        ({"lookback": 3600.0}, 150),
        ({"since": 3600, "lookback": 100_000.0}, 150),
        ({"since": 200_000, "lookback": 3600.0}, 150),
    ],
)
def test_records_are_taken_since_the_later_of_both(world, options, samples):
    since = options.get("since")
    chosen = options | {"since": None if since is None else time.time() - since}
    report = fitted(**chosen)
    assert report["samples"] == samples
    assert report["skipped"] == ({} if samples == 300 else {"older than the look-back": 150})


@pytest.mark.slow
def test_a_fit_of_new_traffic_stores_how_what_was_before_looks_to_its_set(world):
    now = time.time()
    first = fitted(fit="first")
    world[contract.routing_name("d")] = {"data": {contract.ROUTING_KEY: json.dumps({"active": first["set"]})}}
    report = fitted(since=now - 3600, before=now - 7200)
    assert first["active_digest"] is None
    assert report["active_digest"] == first["set"]["digest"], "what it was compared with"
    before = report["baseline"]["before"]
    assert before["requests"] == sum(before["clusters"]) == sum(before["similarity"]) == 150
    assert len(before["clusters"]) == 4
    read = read_baseline(report["baseline"])
    assert read.before.requests == 150
    assert read.counts.requests == 37, "every second one of the newest half"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"since": 3600}, {"before": 7200}], ids=["", "no time", "no active set"]
)
def test_without_an_active_set_or_a_time_nothing_was_before(world, options):
    chosen = {key: time.time() - ago for key, ago in options.items()}
    assert fitted(**chosen)["baseline"]["before"] is None


def test_of_what_was_before_the_records_nearest_to_the_fit_count(make_record):
    times = np.random.default_rng(1).permutation(2000)
    lies = {"prefill": bytes(4 * 64 * 2)}
    log = [make_record(n, n % 100, time=float(at), **(lies if at % 2 else {})) for n, at in enumerate(times)]
    for near, first, last in (600.5, 100, 1100), (0.0, 0, 998), (1900.0, 500, 1498):
        older = Older(log, until=1500.0, near=near, model="m")
        assert list(older) == log
        kept = sorted(record.time for *_, record in older._kept)
        assert (len(kept), kept[0], kept[-1]) == (
            500,
            pytest.approx(first, abs=2),
            pytest.approx(last, abs=2),
        )


def test_too_few_records_fail_with_both_figures_and_what_to_do(world):
    report = fitted(since=time.time() - 3600, min_samples=151)
    assert (report["verdict"], report["reason"]) == ("Failed", "TooFewSamples")
    assert report["message"].startswith(
        "150 usable records, at least 151 are needed (150 older than the look-back)"
    )
    assert "send more traffic" in report["message"]
    assert report["samples"] == 0
    assert report["set"] is None
    assert json.loads(world[contract.report_name("f")]["data"][contract.REPORT_KEY]) == report
    assert list(world) == [contract.report_name("f")], "no shard is left behind"


@pytest.mark.slow
def test_records_that_were_not_kept_count_as_well(world, monkeypatch):
    monkeypatch.setattr(job, "MAX_SAMPLES", 100)
    report = fitted(min_samples=300)
    assert report["verdict"] != "Failed"
    assert report["samples"] == 100
    earlier = fitted(min_samples=10_000)
    assert earlier == report, "an earlier attempt has reported"
    world.clear()
    assert fitted(min_samples=301)["reason"] == "TooFewSamples"


REQUIRED = ("--namespace=n", "--deployment=d", "--fit=f", "--fit-uid=u", "--k=2", "--model=m")


def test_a_job_needs_its_token():
    done = CliRunner().invoke(main, ["fit", "job", *REQUIRED])
    assert done.exit_code == 2
    assert "ELDR_ADMIN_TOKEN is empty" in done.output


@pytest.fixture
def taken(monkeypatch):
    """Return what the command hands to a run."""
    found = []

    def fake(one, progress):
        del progress
        found.append(one)
        return {"verdict": "Failed", "message": "m"}

    monkeypatch.setattr(job, "run", fake)
    monkeypatch.setattr(cli, "one_thread", lambda: None)
    monkeypatch.setenv(contract.ENV_ADMIN_TOKEN, "t")

    def call(*options):
        done = CliRunner().invoke(main, ["fit", "job", *REQUIRED, *options])
        return done, found[-1] if found else None

    return call


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("1700000000.5", 1_700_000_000.5),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
    ],
)
def test_a_moment_is_seconds_or_an_iso_time(taken, text, since):
    done, got = taken(f"--since={text}", "--min-samples=7")
    assert done.exit_code == 0, done.output
    assert (got.since, got.min_samples) == (since, 7)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--since=2023-11-14T22:13:20", "a zone"),
        ("--since=yesterday", "expected Unix seconds or an ISO time"),
        ("--since=nan", "expected Unix seconds or an ISO time"),
        ("--since=-5", "expected Unix seconds or an ISO time"),
        ("--since=0001-01-01T00:00:00Z", "expected Unix seconds or an ISO time"),
        ("--min-samples=x", "--min-samples"),
    ],
)
def test_moments_and_counts_that_nobody_means(taken, option, told):
    done, got = taken(option)
    assert done.exit_code == 2
    assert told in done.output
    assert got is None
