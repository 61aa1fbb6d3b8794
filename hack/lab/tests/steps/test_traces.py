"""Traces through pools of known engines: what is stored, what another call goes on with, what is proven."""

import ast
import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from eldr.core.balancers import JSQ
from eldr.core.policies import make_policy
from eldr.core.policy import Choice
from eldr_bench.proof import Unproven
from eldr_lab.evidence import real
from eldr_lab.steps import measured_with, policies_bench, policies_figures, policies_page, pools
from eldr_lab.steps.law import Row
from eldr_lab.steps.pace import Pace
from eldr_lab.steps.pools import Setting, Trace
from eldr_lab.steps.start import begin
from eldr_lab.steps.witness import Witness

POLICIES = policies_bench.POLICIES
SMALL = ("--requests", "60", "--engines", "2", "--batch", "3")


@pytest.fixture
def bench(requests, engines, law, reference, tmp_path, monkeypatch):
    """The command with known engines, its files in a folder of the test, and the traces that it ran."""
    ran = []
    here = SimpleNamespace(ran=ran, results=tmp_path / "out" / "policies.jsonl", steps_left=10**9, key={"code": "a", "machine": "b"})  # fmt: skip

    @contextmanager
    def first_engine(dtype, log):
        yield engines([here.steps_left])

    class Noted(Trace):
        def __init__(self, traffic, setting, start, seed):
            super().__init__(traffic, setting, start, seed)
            ran.append((seed, setting.holds))

    def traffic(engine, calibration, prompts, seed, progress):
        return requests

    def call(*options):
        return CliRunner().invoke(policies_bench.command, [*SMALL, *options])

    monkeypatch.setattr(policies_bench, "first_engine", first_engine)

    def batches(engine, sizes, tokens, seed, progress):
        rng = np.random.default_rng(0)
        for plan in range(40):
            batch, active = int(rng.choice(sizes)), float(rng.uniform(4, 50))
            # a machine that was twice as slow as the traces' pace
            yield Row(plan, "one kind", batch, 2 * law.seconds(batch, active), active, 2 * reference)

    monkeypatch.setattr(policies_bench, "measure", batches)
    monkeypatch.setattr(policies_bench, "vllm_environment", lambda: tmp_path)
    monkeypatch.setattr(policies_bench, "make_traffic", traffic)
    monkeypatch.setattr(policies_bench, "Trace", Noted)
    monkeypatch.setattr(policies_bench, "key", lambda environment, setting: here.key | {"setting": setting})
    monkeypatch.setattr(policies_bench, "RESULTS", here.results)
    monkeypatch.setattr(policies_bench, "ROOT", tmp_path)
    monkeypatch.setattr(policies_figures, "FIGURES", tmp_path / "policies.json")
    monkeypatch.setattr(policies_page, "PAGE", tmp_path / "policies.md")
    monkeypatch.setattr(policies_page, "PICTURE", tmp_path / "policies.png")
    here.call, here.page, here.figures = call, tmp_path / "policies.md", tmp_path / "policies.json"
    return here


def test_a_killed_measurement_loses_the_trace_under_way_alone(bench):
    bench.steps_left = 6000
    killed = bench.call("--traces", "3")
    assert killed.exit_code != 0
    stored = bench.results.read_text()
    before = list(bench.ran)
    assert 1 + 1 < stored.count("\n") == len(before), "the start, and all but the trace that was under way"
    assert '"batches"' not in stored
    assert before == [(trace, holds) for trace in range(3) for holds in (False, True)][: len(before)]
    assert not bench.page.exists()
    bench.steps_left = 10**9
    assert bench.call("--traces", "3").exit_code == 0
    assert bench.results.read_text().startswith(stored)
    plan = [(trace, holds) for trace in range(3) for holds in (False, True)]
    assert bench.ran == before + plan[len(before) - 1 :]
    assert bench.page.exists()


def test_what_is_done_is_not_done_again_and_more_traces_are_added(bench):
    assert bench.call("--traces", "1").exit_code == 0
    assert bench.call("--traces", "1").exit_code == 0
    assert len(bench.ran) == 2
    text = bench.page.read_text()
    assert "Of 1 of 6 traces: too few to call a policy better or worse" in text
    assert bench.call("--traces", "2").exit_code == 0
    assert bench.ran == [(0, False), (0, True), (1, False), (1, True)]
    assert len(json.loads(bench.figures.read_text())["pools"][0]["traces"]) == 2


def test_a_line_that_was_cut_off_is_measured_again(bench):
    assert bench.call("--traces", "1").exit_code == 0
    lines = bench.results.read_bytes().splitlines(keepends=True)
    cut = b"".join(lines[:3])[:-50]
    bench.results.write_bytes(cut)
    done = bench.call("--traces", "1")
    assert "1 stored result left out: not whole" in done.output
    assert bench.ran == [(0, False), (0, True), (0, True)]
    assert bench.results.read_bytes().startswith(cut + b"\n")


@pytest.mark.parametrize("part", ["code", "machine"])
def test_results_of_another_kind_are_not_mixed_in(bench, part):
    assert bench.call("--traces", "1").exit_code == 0
    first = bench.results.read_text()
    before, bench.key = bench.key[part], bench.key | {part: "other"}
    done = bench.call("--traces", "1")
    assert f"4 stored results left out: another {part}: {before}" in done.output
    assert len(bench.ran) == 4
    assert bench.results.read_text().startswith(first), "they are left out, not lost"


def test_another_setting_is_another_measurement(bench):
    assert bench.call("--traces", "1").exit_code == 0
    done = bench.call("--traces", "1", "--batch", "4")
    assert "4 stored results left out: another setting: float32, batch 3" in done.output
    assert len(bench.ran) == 4


def test_requests_that_do_something_else_end_the_measurement(bench, monkeypatch):
    assert bench.call("--traces", "1").exit_code == 0
    monkeypatch.setattr(policies_bench, "digest", lambda traffic: "other")
    done = bench.call("--traces", "2")
    assert done.exit_code == 1
    assert "requests do not do what they did" in str(done.exception) + done.output


def test_an_engine_of_another_kind_ends_the_measurement(bench, monkeypatch, engines):
    monkeypatch.setattr(engines, "about", lambda self: {"device": "cuda", "vllm": "0.32.0"})
    done = bench.call("--traces", "1")
    assert done.exit_code == 1
    assert not bench.results.exists()


def test_batches_are_told_at_the_pace_of_the_traces(bench, law):
    assert bench.call("--traces", "1").exit_code == 0
    told = json.loads(bench.figures.read_text())["batches"]["constants"]
    assert told == pytest.approx((law.fixed, law.per_expert, law.per_request), rel=1e-6)
    assert bench.call("--traces", "2").exit_code == 0
    assert bench.results.read_text().count('{"batches"') == 1


def test_six_traces_give_verdicts_and_evidence_reads_them(bench):
    assert bench.call().exit_code == 0
    text = bench.page.read_text()
    assert "too few" not in text
    assert "over 6 traces" in text
    found = real.changes(bench.figures)
    names = [name for name in policies_figures.NAMES.values() if name != "JSQ"]
    assert {(one.traces, one.policy) for one in found} == {(6, name) for name in names}
    assert len(found) == 2 * len(names) == 10
    band = found[0]
    pool = json.loads(bench.figures.read_text())["pools"][0]
    values, base = (np.array(pool["by_trace"][name]["TPOT P50"]) for name in ("ELDR", "JSQ"))
    changes = 100 * (values / base - 1)
    mean, half = band.changes["TPOT P50"]
    assert mean == pytest.approx(changes.mean())
    assert half == pytest.approx(2.5706 * changes.std(ddof=1) / np.sqrt(6), rel=1e-4), "t of five degrees"
    section = real.read(bench.figures, bench.figures.with_name("none"))
    assert "6 traces" in section
    assert "over 6 traces" in section


def trace(requests, engines, setting=None):
    engine = engines()
    pace = Pace(engine.reference)
    setting = setting or Setting(2, 3, 60, holds=False)
    return engine, pace, Trace(requests, setting, begin(engine, requests, 3, pace, 0), 1)


def test_every_policy_is_seen_to_decide_by_its_rule(requests, engines):
    engine, pace, one = trace(requests, engines)
    told = []
    found = one.run(engine, POLICIES, pace, told.append)
    reasons = [found["proofs"][name]["reason"] for name in POLICIES]
    assert reasons == ["fewest in flight", "band", "band", "union", "union and prior", "union and prior"]
    assert [found["proofs"][name]["unlike"] > 0 for name in POLICIES] == [False, True, True, True, True, True]
    tokens = {found["proofs"][name]["tokens"] for name in POLICIES}
    assert len(tokens) == 1
    assert found["policies"]["ELDR"]["active experts"] < found["policies"]["JSQ"]["active experts"]
    assert found["requests"] > 30
    assert told[-1] == 1.0


def test_a_pool_begins_as_full_as_it_is_to_be(requests, engines):
    _, _, one = trace(requests, engines, Setting(2, 3, 600, holds=False))
    work = one._workload
    assert (work.arrival == 0).sum() == 6
    assert not work.measured[:6].any()
    lengths = requests.population.output_tokens
    assert all(1 <= left <= lengths[record] for left, record in zip(work.tokens[:6], work.record[:6], strict=True))  # fmt: skip
    assert work.measured.sum() == pytest.approx(600, rel=0.15)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("MarginalUnion", JSQ()),
        ("MarginalUnion:prior=0.23", make_policy("MarginalUnion", prior=0.0)),
        ("MarginalUnion:learned=0.23", make_policy("MarginalUnion", prior=0.0)),
        ("ELDR", make_policy("MarginalUnion")),
        ("JSQ", make_policy("RoundRobin")),
    ],
)
def test_another_policy_than_the_row_names_is_unproven(requests, engines, monkeypatch, name, broken):
    engine, pace, one = trace(requests, engines)
    monkeypatch.setattr(pools, "Witness", lambda policy: Witness(broken))
    with pytest.raises(Unproven, match="decisions rest on"):
        one.run(engine, [name], pace, lambda part: None)


def test_a_policy_that_does_not_keep_its_rule_is_unproven(requests, engines, monkeypatch):
    engine, pace, one = trace(requests, engines)
    first = lambda self, situation, rng: Choice(0, 1)  # noqa: E731
    monkeypatch.setattr("eldr.core.band.BandJSQ.choose", first)
    with pytest.raises(Unproven, match="outside of the band"):
        one.run(engine, ["ELDR"], pace, lambda part: None)


def test_a_policy_that_fell_back_is_unproven(requests, engines, monkeypatch):
    engine, pace, one = trace(requests, engines)
    monkeypatch.setattr("eldr.core.union.Unions.outlook", lambda *args: None)
    with pytest.raises(Unproven, match="no outlook"):
        one.run(engine, ["MarginalUnion"], pace, lambda part: None)


def test_a_band_as_wide_as_the_pool_is_unproven(requests, engines, monkeypatch):
    engine, pace, one = trace(requests, engines)
    monkeypatch.setattr(pools, "Witness", lambda policy: Witness(make_policy("ELDR", tau=2.0)))
    with pytest.raises(Unproven, match="JSQ would have made 0 decisions otherwise"):
        one.run(engine, ["ELDR"], pace, lambda part: None)


def test_answers_cut_short_are_unproven(requests, engines, monkeypatch):
    engine, pace, one = trace(requests, engines)
    whole = engines.add
    monkeypatch.setattr(engines, "add", lambda self, name, prompt, tokens, seed: whole(self, name, prompt, max(1, tokens - 1), seed))  # fmt: skip
    with pytest.raises(Unproven, match="tokens of"):
        one.run(engine, ["JSQ"], pace, lambda part: None)


def test_steps_that_tell_of_one_layer_alone_are_unproven(requests, engines, monkeypatch):
    engine, pace, one = trace(requests, engines)
    whole = engines.step
    monkeypatch.setattr(engines, "step", lambda self: (step := whole(self))._replace(experts=step.experts[:1]))  # fmt: skip
    with pytest.raises(Unproven, match="in 1 layers"):
        one.run(engine, ["JSQ"], pace, lambda part: None)


def test_one_digest_holds_the_code_that_measures_and_none_that_tells(tmp_path):
    held = measured_with.modules(measured_with._RUN)
    assert {f"eldr_lab.steps.{name}" for name in ("engine", "witness", "world", "widen")} <= set(held)
    assert {
        "eldr.core.marginal",
        "eldr.core.step_time_fit",
        "eldr.simulate.run",
        "eldr_tiny_moe.corpus",
    } <= set(held)
    assert not [name for name in held if "policies_" in name or name.endswith("store")]
    key = measured_with.key(tmp_path / "abc", "float32")
    assert set(key) == {"code", "vLLM", "machine", "setting"}
    assert key["vLLM"] == "abc"


def test_texts_of_code_may_change_and_nothing_else():
    def told(source):
        return ast.dump(measured_with.without_texts(source))

    first = told('"""One."""\nA = 1\n"""Of A."""\ndef f():\n    """Two."""\n    return A\n')
    assert first == told("A = 1  # one\n\ndef f():\n    return A")
    assert first != told("A = 2\ndef f():\n    return A")
    assert first != told("A = 1\ndef f():\n    return 'A'")
