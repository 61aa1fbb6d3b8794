"""The scheduler and worker halves against vLLM's own step types: who gets which counts, when, and in which order."""

import numpy as np
import pytest
import torch
from vllm.v1.request import RequestStatus

from eldr.contract import LATE_PREFILLED, PULL_BEFORE_KEY
from eldr.engine.capture.kernels import FAILED
from eldr.engine.counting import Counting
from eldr.engine.decode import scheduler as decode_scheduler
from eldr.engine.decode.records import page
from eldr.engine.decode.ring import RingReader, path_of
from eldr.engine.decode.scheduler import DEFAULT_RECORDS, DecodeScheduler, kept_records
from eldr.engine.decode.worker import DecodeWorker
from eldr.engine.figures import N_FIGURES
from eldr.engine.messages import BalanceReport, StepReport
from eldr.engine.prefill.scheduler import PrefillScheduler
from eldr.engine.prefill.worker import PrefillWorker
from eldr.wire import decode_counts
from tests.engine.fakes import LAYERS
from tests.engine.halves import (
    EXPERTS,
    GROUP,
    NO_WINDOWS,
    REMOTE,
    TOP_K,
    config,
    counts_of,
    output,
    request,
    run,
    sent,
)


def test_how_many_records_are_kept():
    assert kept_records({}) == DEFAULT_RECORDS
    assert kept_records({"activation_records": 1}) == 1


@pytest.mark.parametrize("value", [0, -1, "x", 1.5, True, None, 2**20 + 1, 2**63])
def test_no_number_of_records_is_refused_by_name(value):
    with pytest.raises(ValueError, match=f"activation_records .* from 1 to 1048576, got {value!r}"):
        kept_records({"activation_records": value})


def test_a_setting_that_nothing_reads_is_refused_by_name():
    with pytest.raises(
        ValueError, match="unknown activation_record, kv_lease_duration; there is activation_records"
    ):
        kept_records({"activation_record": 5, "kv_lease_duration": 3})


class TestPrefillScheduler:
    @pytest.fixture
    def half(self):
        return PrefillScheduler(config(), GROUP, GROUP.block_size)

    def test_a_chunked_prompt_is_summed_with_its_last_chunk_over_the_blocks_of_the_prompt(self, half):
        half.add(request("a", 10, kv=REMOTE))
        blocks = {"a": [7, 3, 5, 8]}  # the last one is for tokens after the prompt
        assert half.orders(output(new=[("a", 0, 6)], blocks=blocks)).finishing == {}
        assert half.orders(output(cached=[("a", 6, 4)], blocks=blocks)).finishing == {("a", 0): [7, 3, 5]}
        assert half.orders(output(cached=[("a", 10, 1)], blocks=blocks)).finishing == {}

    def test_other_requests_are_not_followed(self, half):
        half.add(request("plain", 4))
        half.add(request("pulled", 4, kv={"do_remote_prefill": True}))
        assert half.orders(output(new=[("plain", 0, 4)], blocks={"plain": [1]})).finishing == {}
        assert half.end(request("plain", 4)) is None

    def test_the_answer_is_filled_in_after_it_was_handed_over(self, half):
        half.add(request("a", 10, kv=REMOTE))
        answer = half.end(request("a", 10))
        assert answer["eldr"]["unavailable"] == "no counts for this request"
        half.update(sent(StepReport({("a", 0): counts_of(10)})))
        value = decode_counts(answer["eldr"])
        assert (value.tokens, value.top_k, value.exact, value.shape) == (10, TOP_K, True, (LAYERS, EXPERTS))
        assert half.stats().data["records"] == {"exact": 1}
        assert half.stats() is None

    def test_counts_that_came_before_the_end_are_in_the_answer_at_once(self, half):
        half.add(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(10)}))
        assert decode_counts(half.end(request("a", 10))["eldr"]).tokens == 10

    def test_a_prompt_that_is_summed_again_after_a_failed_load_is_one_record(self, half):
        half.add(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(9)}))
        half.update(StepReport({("a", 0): counts_of(10)}))
        assert decode_counts(half.end(request("a", 10))["eldr"]).exact
        assert half.stats().data["records"] == {"exact": 1}

    def test_missing_tokens_make_it_inexact(self, half):
        half.add(request("a", 10, kv=REMOTE))
        answer = half.end(request("a", 10))
        half.update(StepReport({("a", 0): counts_of(9)}))
        assert decode_counts(answer["eldr"]).exact is False

    def test_long_prompts_use_wider_numbers(self, half):
        half.add(request("a", 70_000, kv=REMOTE))
        answer = half.end(request("a", 70_000))
        half.update(StepReport({("a", 0): counts_of(70_000)}))
        value = decode_counts(answer["eldr"])
        assert answer["eldr"]["dtype"] == "uint32"
        assert value.counts.max() == 70_000

    def test_an_aborted_request_is_forgotten(self, half):
        half.add(request("a", 10, kv=REMOTE))
        assert half.end(request("a", 10, status=RequestStatus.FINISHED_ABORTED)) is None
        half.update(StepReport({("a", 0): counts_of(10)}))
        assert half.stats() is None

    def test_an_id_that_comes_again_gets_no_counts_of_the_one_before(self, half):
        half.add(request("a", 10, kv=REMOTE))
        half.end(request("a", 10, status=RequestStatus.FINISHED_ABORTED))
        half.add(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(9)}))  # scheduled ahead, and reported late
        answer = half.end(request("a", 10))
        half.update(StepReport({("a", 1): counts_of(10)}))
        assert decode_counts(answer["eldr"]).exact

    def test_a_prompt_that_is_streamed_in_has_no_counts_and_says_why(self, half):
        half.add(request("a", 10, kv=REMOTE, resumable=True))
        assert half.orders(output(new=[("a", 0, 10)], blocks={"a": [1, 2, 3]})).finishing == {}
        answer = half.end(request("a", 10))
        assert answer == {"eldr": {"v": 1, "unavailable": "the prompt was streamed in"}}
        assert half.stats().data["records"] == {"unavailable": 1}
        assert half.end(request("a", 10)) is None

    def test_an_engine_that_cannot_see_its_routing_says_why_in_every_answer(self, half):
        blind = Counting("signatures")
        blind.stop("kernel X routes inside itself")
        half.add(request("a", 10, kv=REMOTE))
        half.update(sent(StepReport({}, counting=blind)))
        answer = half.end(request("a", 10))
        half.update(sent(StepReport({}, counting=blind)))
        assert answer["eldr"] == {"v": 1, "unavailable": "kernel X routes inside itself"}
        assert half.stats().data["records"] == {"unavailable": 1}


def test_prefill_counts_a_prompt_of_which_the_first_block_was_cached(engine):
    half = PrefillScheduler(config(), GROUP, GROUP.block_size)
    worker = PrefillWorker(config(), GROUP, n_blocks=10, reports=True)
    for name, cached_blocks, expert in (("first", 0, 0), ("second", 1, 2)):
        half.add(request(name, 6, kv=REMOTE, hashes=["shared"]))
        done = cached_blocks * GROUP.block_size
        blocks = {name: [3, 5]}  # the second prompt shares block 3 and reuses block 5
        report = run(half, worker, new=[(name, done, 6 - done)], blocks=blocks, expert=expert)
        answer = half.end(request(name, 6))
        half.update(report)
        value = decode_counts(answer["eldr"])
        assert value.exact
        if name == "first":
            assert value.counts.tolist() == [[6, 6, 0, 0, 0, 0]] * LAYERS
        else:
            assert value.counts.tolist() == [[4, 4, 2, 2, 0, 0]] * LAYERS


def test_decode_publishes_what_generated_tokens_activated_and_measures_every_step(
    engine, monkeypatch, tmp_path
):
    monkeypatch.setattr(decode_scheduler, "rings_of", lambda instance, _: [path_of(instance, tmp_path)])
    half = DecodeScheduler(config("d"), GROUP, NO_WINDOWS, records=4)
    worker = DecodeWorker(config("d"), GROUP, n_blocks=10, reports=True)
    name = "cmpl-eldr-0a1b2c3d-7-1-0-0123abcd"
    asked = request(name, 6, kv={"do_remote_prefill": True})
    half.add(asked)
    blocks = {name: [4, 2, 8]}
    half.update(run(half, worker, new=[(name, 5, 1)], blocks=blocks, expert=0))  # the prompt's last token
    half.update(run(half, worker, cached=[(name, 6, 1)], blocks=blocks, expert=2))
    half.update(run(half, worker, cached=[(name, 7, 1)], blocks=blocks, expert=2))
    half.update(run(half, worker, cached=[(name, 8, 1)], blocks=blocks, expert=4))
    asked.num_output_tokens = 4
    assert half.end(asked) is None
    half.update(run(half, worker, expert=0))
    reader = RingReader(path_of("d", tmp_path))
    (record,) = page([reader], after="0", limit=9)["records"]
    assert record["request_id"] == "eldr-0a1b2c3d-7"
    value = decode_counts(record)
    assert value.counts.tolist() == [[0, 0, 2, 2, 1, 1]] * LAYERS
    assert (value.tokens, value.exact) == (3, True)
    stats = half.stats().data
    assert stats["active"] == [[TOP_K] * LAYERS] * 4
    assert stats["batch"] == [1] * 4
    assert stats["context"] == sorted(stats["context"]), "it grows by a token"
    assert len(stats["context"]) == 4
    assert all(seconds > 0 for seconds in stats["seconds"])
    assert stats["records"] == {"exact": 1}
    reader.close()
    half.close()
    assert not path_of("d", tmp_path).exists()


def test_of_a_step_of_several_ranks_one_tells(engine, monkeypatch, tmp_path):
    """Requests of all ranks stand in the report, 0 where another rank tells."""
    monkeypatch.setattr(decode_scheduler, "rings_of", lambda instance, _: [path_of(instance, tmp_path)])
    half = DecodeScheduler(config("d"), GROUP, NO_WINDOWS, records=4)
    half.add(request("a", 6, kv={"do_remote_prefill": True}))
    union = torch.tensor([TOP_K] * LAYERS, dtype=torch.int32)
    figures = torch.ones(LAYERS, N_FIGURES, dtype=torch.int32)
    for number, requests in enumerate((5, 0, 7)):
        half.orders(output(cached=[("a", 6 + number, 1)], blocks={"a": [4, 2, 8]}))
        chosen = BalanceReport(figures, torch.tensor(False), 0.001)
        report = StepReport({}, number + 1, union, balance=chosen, requests=torch.tensor(requests))
        half.update(sent(report))
    stats = half.stats().data
    assert stats["batch"] == stats["fed"] == [5, 7]
    assert stats["context"] == [5 * 7, 7 * 9], "other ranks hold about as much"
    assert len(stats["active"]) == len(stats["seconds"]) == len(stats["balance"]) == 2
    half.close()


def test_when_another_rank_fails_to_count_this_one_stops_too(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(decode_scheduler, "rings_of", lambda instance, _: [path_of(instance, tmp_path)])
    half = DecodeScheduler(config("d"), GROUP, NO_WINDOWS, records=4)
    asked = request("a", 6, kv={"do_remote_prefill": True})
    half.add(asked)
    half.orders(output(cached=[("a", 6, 1)], blocks={"a": [4, 2, 8]}))
    asked.num_output_tokens = 3
    half.end(asked)
    union = torch.tensor([TOP_K] * LAYERS, dtype=torch.int32)
    half.update(sent(StepReport({"a": counts_of(2)}, 1, union, requests=torch.tensor(FAILED))))
    assert half.stats().data["records"] == {"unavailable": 1}
    half.close()


def test_a_request_with_one_token_has_an_empty_record_and_nobody_waits_for_it(decoding):
    half, worker, records = decoding
    one = request("one", 6, generated=1)
    half.add(one)
    report = run(half, worker, new=[("one", 5, 1)], blocks={"one": [4, 2]}, expert=0)
    half.end(one)  # vLLM ends a request before it hands over the step's report
    half.update(report)
    (record,) = records()
    value = decode_counts(record)
    assert (record["request_id"], value.tokens, value.exact, value.shape) == (
        "one",
        0,
        True,
        (LAYERS, EXPERTS),
    )
    assert not value.counts.any()


def test_a_prompt_that_is_computed_here_for_it_came_too_late_to_be_pulled_does_not_count(decoding):
    half, worker, records = decoding
    late = request("late", 6, kv={"do_remote_prefill": True, PULL_BEFORE_KEY: 1.0})
    half.add(late)
    assert half.pulls.refuse(late)
    half.pulls.allocated(late)
    blocks = {"late": [4, 2, 8]}
    half.update(run(half, worker, new=[("late", 0, 4)], blocks=blocks, expert=0))  # the prompt, in two chunks
    half.update(run(half, worker, cached=[("late", 4, 2)], blocks=blocks, expert=0))
    half.update(run(half, worker, cached=[("late", 6, 1)], blocks=blocks, expert=2))
    late.num_output_tokens = 2
    half.end(late)
    half.update(run(half, worker, expert=0))
    (record,) = records()
    value = decode_counts(record)
    assert value.counts.tolist() == [[0, 0, 1, 1, 0, 0]] * LAYERS
    assert (value.tokens, value.exact) == (1, True)
    stats = half.stats().data
    assert (stats["records"], stats["late"]) == ({"exact": 1}, {LATE_PREFILLED: 1})


def test_requests_that_never_ran_or_are_streamed_in_leave_no_record(decoding):
    half, worker, records = decoding
    half.add(request("never ran", 6))
    half.add(request("streamed", 6, resumable=True))
    half.update(run(half, worker, new=[("streamed", 0, 6)], blocks={"streamed": [4, 2]}, expert=0))
    half.update(run(half, worker, cached=[("streamed", 6, 1)], blocks={"streamed": [4, 2]}, expert=0))
    for name in ("never ran", "streamed"):
        half.end(request(name, 6))
    half.update(run(half, worker, expert=0))
    assert records() == []
    assert half.stats().data["records"] == {"unavailable": 1}


def test_steps_whose_report_never_comes_are_forgotten(decoding):
    half, worker, _ = decoding
    half.add(request("a", 1))
    blocks = {"a": [1, 2, 3, 4, 5, 6, 7, 8]}
    for _ in range(1000):
        half.orders(output(cached=[("a", 0, 1)], blocks=blocks))
    assert len(half._begun) <= 64
    half.update(run(half, worker, cached=[("a", 1, 1)], blocks=blocks, expert=0))
    assert not half._begun
    assert half.stats().data["batch"] == [1]


def test_a_token_that_is_fed_after_the_end_does_not_count(decoding):
    half, worker, records = decoding
    blocks, asked = {"a": [4, 2]}, request("a", 3)
    half.add(asked)
    half.update(run(half, worker, new=[("a", 2, 1)], blocks=blocks, expert=0))
    # asynchronous scheduling: a step is scheduled before the report of the one before it has come
    report = run(half, worker, cached=[("a", 3, 1)], blocks=blocks, expert=2)
    ahead = run(half, worker, cached=[("a", 4, 1)], blocks=blocks, expert=4)
    asked.num_output_tokens = 2
    half.end(asked)
    half.update(report)
    half.update(ahead)
    half.update(run(half, worker, expert=0))
    value = decode_counts(records()[0])
    assert (value.tokens, value.exact) == (1, True)
    assert value.counts.tolist() == [[0, 0, 1, 1, 0, 0]] * LAYERS


def test_after_sleep_what_ran_before_is_not_exact_and_what_runs_then_is(decoding):
    half, worker, records = decoding
    before, after = request("before", 3), request("after", 3)
    half.add(before)
    half.update(run(half, worker, new=[("before", 2, 1)], blocks={"before": [4, 2]}, expert=0))
    half.update(run(half, worker, cached=[("before", 3, 1)], blocks={"before": [4, 2]}, expert=2))
    for table in (worker._rows.counts, worker._rows.latest, worker._rows.positions, worker._rows.owner):
        table.fill_(2**20)  # whatever a vLLM does to them: up to 0.33 they stay as they were
    half.reset()
    half.add(after)
    blocks = {"before": [7, 8], "after": [4, 2]}
    half.update(run(half, worker, new=[("after", 2, 1)], cached=[("before", 0, 4)], blocks=blocks, expert=0))
    half.update(run(half, worker, cached=[("before", 4, 1), ("after", 3, 1)], blocks=blocks, expert=4))
    before.num_output_tokens, after.num_output_tokens = 3, 2
    half.end(before)
    half.end(after)
    half.update(run(half, worker, expert=0))
    found = {record["request_id"]: decode_counts(record) for record in records()}
    assert (found["before"].exact, found["after"].exact) == (False, True)
    assert found["after"].counts.tolist() == [[0, 0, 0, 0, 1, 1]] * LAYERS


def test_reports_survive_the_way_between_processes():
    report = sent(StepReport({"a": counts_of(3)}, 7, torch.tensor([1, 2], dtype=torch.int32)))
    counts, union = report.arrived()
    assert np.array_equal(counts["a"], counts_of(3).numpy())
    assert (report.step, union.tolist()) == (7, [1, 2])
