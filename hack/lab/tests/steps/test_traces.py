"""Traces through pools of known engines: what is stored, what another call goes on with, what is proven."""

from contextlib import contextmanager
from types import SimpleNamespace

import click
import pytest

from eldr.core.balancers import JSQ
from eldr.core.policies import make_policy
from eldr_bench.proof import Unproven
from eldr_lab.pool.witness import Witness
from eldr_lab.steps import policies_bench, policies_page, pools
from eldr_lab.steps.pools import Setting, Trace
from eldr_lab.steps.start import Pace, begin

POLICIES = policies_bench.POLICIES


@pytest.fixture
def bench(requests, engines, tmp_path, monkeypatch):
    """The program with known engines, its files in a folder of the test, and the traces that it ran."""
    ran = []
    here = SimpleNamespace(ran=ran, results=tmp_path / "out" / "policies.jsonl", steps_left=10**9, page=tmp_path / "policies.md")  # fmt: skip

    @contextmanager
    def first_engine(dtype, log):
        yield engines([here.steps_left])

    class Noted(Trace):
        def __init__(self, traffic, setting, start, seed):
            super().__init__(traffic, setting, start, seed)
            ran.append((seed, setting.holds))

    replaced = {
        "first_engine": first_engine, "vllm_environment": lambda: tmp_path, "revision": lambda: "commit a",
        "make_traffic": lambda *args: requests, "Trace": Noted, "RESULTS": here.results, "ROOT": tmp_path,
    }  # fmt: skip
    for name, value in replaced.items():
        monkeypatch.setattr(policies_bench, name, value)
    for name, ending in (("FIGURES", "json"), ("PAGE", "md")):
        monkeypatch.setattr(policies_page, name, tmp_path / f"policies.{ending}")
    here.call = lambda traces: policies_bench.measure_traces(traces, [2], 3, 60)
    return here


def test_a_killed_measurement_loses_the_trace_under_way_alone(bench):
    bench.steps_left = 6000
    with pytest.raises(KeyboardInterrupt):
        bench.call(3)
    stored, before = bench.results.read_text(), list(bench.ran)
    assert 1 + 1 < stored.count("\n") == len(before), "the start, and all but the trace that was under way"
    assert not bench.page.exists()
    bench.steps_left = 10**9
    bench.call(3)
    assert bench.results.read_text().startswith(stored)
    plan = [(trace, holds) for trace in range(3) for holds in (False, True)]
    assert bench.ran == before + plan[len(before) - 1 :]
    assert "Of 3 of 6 traces: too few" in bench.page.read_text()


def test_a_line_that_was_cut_off_is_measured_again_and_others_are_left_out(bench, monkeypatch, capsys):
    bench.call(1)
    lines = bench.results.read_bytes().splitlines(keepends=True)
    cut = b"".join(lines[:3])[:-50]
    bench.results.write_bytes(cut)
    bench.call(1)
    assert bench.ran == [(0, False), (0, True), (0, True)]
    assert bench.results.read_bytes().startswith(cut + b"\n")
    monkeypatch.setattr(policies_bench, "revision", lambda: "commit b")
    bench.call(1)
    assert len(bench.ran) == 5
    told = capsys.readouterr().err
    assert "1 stored result left out: not whole" in told
    assert "left out: another code: commit a" in told


def test_requests_or_engines_of_another_kind_end_the_measurement(bench, monkeypatch, engines):
    bench.call(1)
    monkeypatch.setattr(policies_bench, "digest", lambda traffic: "other")
    with pytest.raises(SystemExit, match="requests do not do what they did"):
        bench.call(2)
    monkeypatch.setattr(engines, "about", lambda self: {"device": "cuda", "vllm": "0.32.0"})
    with pytest.raises(SystemExit, match="the engine says"):
        bench.call(2)


def test_two_programs_do_not_measure_into_one_file(bench):
    with policies_bench.alone(bench.results), pytest.raises(click.ClickException, match="another process"):
        bench.call(1)


def trace(requests, engines, setting=None):
    engine = engines()
    pace = Pace(engine.reference)
    setting = setting or Setting(2, 3, 60, holds=False)
    return engine, pace, Trace(requests, setting, begin(engine, requests, 3, pace, 0), 1)


def test_every_policy_decides_by_its_rule(requests, engines):
    engine, pace, one = trace(requests, engines)
    parts = []
    found = one.run(engine, POLICIES, pace, parts.append)
    assert list(found["reasons"].values()) == [
        "fewest in flight", "band", "band", "union", "union and prior", "union and prior",
    ]  # fmt: skip
    assert found["policies"]["ELDR"]["active experts"] < found["policies"]["JSQ"]["active experts"]
    assert found["requests"] > 30
    assert parts[-1] == 1.0


def test_a_pool_begins_as_full_as_it_is_to_be(requests, engines):
    _, _, one = trace(requests, engines, Setting(2, 3, 600, holds=False))
    work, lengths = one._workload, requests.population.output_tokens
    assert (work.arrival == 0).sum() == 6
    assert not work.measured[:6].any()
    assert (work.tokens[:6] >= 1).all()
    assert (work.tokens[:6] <= lengths[work.record[:6]]).all()
    assert work.measured.sum() == pytest.approx(600, rel=0.15)


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("MarginalUnion", JSQ(), "decisions rest on"),
        ("MarginalUnion:prior=0.23", make_policy("MarginalUnion", prior=0.0), "decisions rest on"),
        ("ELDR", make_policy("MarginalUnion"), "decisions rest on"),
        ("JSQ", make_policy("RoundRobin"), "decisions rest on"),
        ("ELDR", make_policy("ELDR", tau=2.0), "JSQ would have made 0 decisions otherwise"),
    ],
)
def test_another_policy_than_the_row_names_is_unproven(requests, engines, monkeypatch, name, broken, message):
    engine, pace, one = trace(requests, engines)
    monkeypatch.setattr(pools, "Witness", lambda policy: Witness(broken))
    with pytest.raises(Unproven, match=message):
        one.run(engine, [name], pace, lambda part: None)


def test_answers_cut_short_are_unproven(requests, engines, monkeypatch):
    engine, pace, one = trace(requests, engines)
    add = engines.add
    monkeypatch.setattr(engines, "add", lambda self, name, prompt, tokens, seed: add(self, name, prompt, max(1, tokens - 1), seed))  # fmt: skip
    with pytest.raises(Unproven, match="tokens of"):
        one.run(engine, ["JSQ"], pace, lambda part: None)


def test_steps_of_one_layer_are_unproven(requests, engines, monkeypatch):
    engine, pace, one = trace(requests, engines)
    step = engines.step
    monkeypatch.setattr(engines, "step", lambda self: (one := step(self))._replace(experts=one.experts[:1]))
    with pytest.raises(Unproven, match="in 1 layers"):
        one.run(engine, ["JSQ"], pace, lambda part: None)
