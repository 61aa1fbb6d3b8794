"""The scheduler and worker halves against vLLM's own step types: who gets which counts, when, and in which order."""

import errno
import os

import numpy as np
import pytest
import torch
from vllm.v1.request import RequestStatus

from eldr.contract import LATE_PREFILLED, PULL_BEFORE_KEY
from eldr.engine.capture.kernels import FAILED
from eldr.engine.capture.union import MIXED
from eldr.engine.counting import Counting
from eldr.engine.decode.records import page
from eldr.engine.decode.ring import RingReader, path_of
from eldr.engine.figures import N_FIGURES
from eldr.engine.messages import BalanceReport, StepReport
from eldr.engine.scheduler import DEFAULT_RECORDS, Scheduler, kept_records
from eldr.engine.worker import Worker
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
    prefill_half,
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


class TestPrefill:
    @pytest.fixture
    def half(self):
        return prefill_half(config())

    def test_a_chunked_prompt_is_summed_with_its_last_chunk_over_the_blocks_of_the_prompt(self, half):
        half.add(request("a", 10, kv=REMOTE))
        blocks = {"a": [7, 3, 5, 8]}  # the last one is for tokens after the prompt
        assert half.orders(output(new=[("a", 0, 6)], blocks=blocks)).finishing == {}
        assert half.orders(output(cached=[("a", 6, 4)], blocks=blocks)).finishing == {("a", 0): [7, 3, 5]}
        assert half.orders(output(cached=[("a", 10, 1)], blocks=blocks)).finishing == {}

    def test_the_answer_is_filled_in_after_it_was_handed_over(self, half):
        half.add(request("a", 10, kv=REMOTE))
        answer = half.end(request("a", 10, kv=REMOTE))
        assert answer["eldr"]["unavailable"] == "no counts for this request"
        half.update(sent(StepReport({("a", 0): counts_of(10)})))
        value = decode_counts(answer["eldr"])
        assert (value.tokens, value.top_k, value.exact, value.shape) == (10, TOP_K, True, (LAYERS, EXPERTS))
        assert half.stats().data["records"] == {"exact": 1}
        assert half.stats() is None

    def test_counts_that_came_before_the_end_are_in_the_answer_at_once(self, half):
        half.add(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(10)}))
        assert decode_counts(half.end(request("a", 10, kv=REMOTE))["eldr"]).tokens == 10

    def test_a_prompt_that_is_summed_again_after_a_failed_load_is_one_record(self, half):
        half.add(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(9)}))
        half.update(StepReport({("a", 0): counts_of(10)}))
        assert decode_counts(half.end(request("a", 10, kv=REMOTE))["eldr"]).exact
        assert half.stats().data["records"] == {"exact": 1}

    def test_missing_tokens_make_it_inexact(self, half):
        half.add(request("a", 10, kv=REMOTE))
        answer = half.end(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(9)}))
        assert decode_counts(answer["eldr"]).exact is False

    def test_long_prompts_use_wider_numbers(self, half):
        half.add(request("a", 70_000, kv=REMOTE))
        answer = half.end(request("a", 70_000, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(70_000)}))
        value = decode_counts(answer["eldr"])
        assert answer["eldr"]["dtype"] == "uint32"
        assert value.counts.max() == 70_000

    def test_an_aborted_request_is_forgotten(self, half):
        half.add(request("a", 10, kv=REMOTE))
        assert half.end(request("a", 10, kv=REMOTE, status=RequestStatus.FINISHED_ABORTED)) is None
        half.update(StepReport({("a", 0): counts_of(10)}))
        assert half.stats() is None

    def test_an_id_that_comes_again_gets_no_counts_of_the_one_before(self, half):
        half.add(request("a", 10, kv=REMOTE))
        half.end(request("a", 10, kv=REMOTE, status=RequestStatus.FINISHED_ABORTED))
        half.add(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(9)}))  # scheduled ahead, and reported late
        answer = half.end(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 1): counts_of(10)}))
        assert decode_counts(answer["eldr"]).exact

    def test_a_prompt_that_is_streamed_in_has_no_counts_and_says_why(self, half):
        half.add(request("a", 10, kv=REMOTE, resumable=True))
        assert half.orders(output(new=[("a", 0, 10)], blocks={"a": [1, 2, 3]})).finishing == {}
        answer = half.end(request("a", 10, kv=REMOTE))
        assert answer == {"eldr": {"v": 1, "unavailable": "the prompt was streamed in"}}
        assert half.stats().data["records"] == {"unavailable": 1}

    def test_an_engine_that_cannot_see_its_routing_says_why_in_every_answer(self, half):
        blind = Counting("signatures")
        blind.stop("kernel X routes inside itself")
        half.add(request("a", 10, kv=REMOTE))
        half.update(sent(StepReport({}, counting=blind)))
        answer = half.end(request("a", 10, kv=REMOTE))
        half.update(sent(StepReport({}, counting=blind)))
        assert answer["eldr"] == {"v": 1, "unavailable": "kernel X routes inside itself"}
        assert half.stats().data["records"] == {"unavailable": 1}


def test_decode_publishes_what_generated_tokens_activated_and_measures_every_step(
    engine, monkeypatch, tmp_path
):
    half = Scheduler(config("d"), GROUP, NO_WINDOWS, records=4)
    worker = Worker(config("d"), GROUP, n_blocks=10, prompts=False, reports=True)
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
    half = Scheduler(config("d"), GROUP, NO_WINDOWS, records=4)
    half.add(request("a", 6, kv={"do_remote_prefill": True}))
    union = torch.tensor([TOP_K] * LAYERS, dtype=torch.int32)
    figures = torch.ones(LAYERS, N_FIGURES, dtype=torch.int32)
    for number, requests in enumerate((5, 0, 7)):
        half.orders(output(cached=[("a", 6 + number, 1)], blocks={"a": [4, 2, 8]}))
        chosen = BalanceReport(figures, torch.tensor(False))
        report = StepReport({}, number + 1, union, balance=chosen, requests=torch.tensor(requests))
        half.update(sent(report))
    stats = half.stats().data
    assert stats["batch"] == stats["fed"] == [5, 7]
    assert stats["context"] == [5 * 7, 7 * 9], "other ranks hold about as much"
    assert len(stats["active"]) == len(stats["seconds"]) == len(stats["balance"]) == 2
    half.close()


def test_steps_that_compute_prompts_on_any_rank_are_not_measured(engine):
    half = Scheduler(config("d"), GROUP, NO_WINDOWS, records=4)
    union = torch.tensor([TOP_K] * LAYERS, dtype=torch.int32)
    figures = torch.ones(LAYERS, N_FIGURES, dtype=torch.int32)
    half.add(request("a", 6))
    for number, (done, tokens, others) in enumerate(((0, 4, None), (4, 2, None), (6, 1, 2), (7, 1, MIXED))):
        orders = half.orders(output(cached=[("a", done, tokens)], blocks={"a": [4, 2, 8]}))
        of_all = None if others is None else torch.tensor(orders.requests + others)
        chosen = BalanceReport(figures, torch.tensor(False))
        half.update(sent(StepReport({}, number + 1, union, balance=chosen, requests=of_all)))
    stats = half.stats().data
    assert stats["batch"] == stats["fed"] == [3]
    assert len(stats["active"]) == len(stats["seconds"]) == len(stats["balance"]) == 1
    half.close()


def serve(half, worker, name, prompt, generated, blocks, *, kv=None, **more):
    """Serve a request whole: its prompt uses experts 0 and 1, what it generates experts 2 and 3."""
    asked = request(name, prompt, kv=kv, **more)
    half.add(asked)
    report = run(half, worker, new=[(name, 0, prompt)], blocks={name: blocks}, expert=0)
    for at in range(prompt, prompt + generated - 1):
        half.update(report)
        report = run(half, worker, cached=[(name, at, 1)], blocks={name: blocks}, expert=2)
    asked.num_output_tokens = generated
    answer = half.end(asked)
    half.update(report)
    half.update(run(half, worker, expert=0))
    return answer


@pytest.mark.parametrize("generated", [1, 4])
def test_an_engine_that_does_both_has_prompt_and_answer_in_a_record(serving, generated):
    half, worker, records = serving
    assert serve(half, worker, "a", 6, generated, [4, 2, 8]) is None, "clients get no counts"
    (record,) = records()
    prompt, answer = decode_counts(record["prompt"]), decode_counts(record)
    assert (prompt.tokens, prompt.exact, answer.tokens, answer.exact) == (6, True, generated - 1, True)
    assert prompt.counts.tolist() == [[6, 6, 0, 0, 0, 0]] * LAYERS
    assert answer.counts.tolist() == [[0, 0, generated - 1, generated - 1, 0, 0]] * LAYERS
    stats = half.stats().data
    assert stats["records"] == {"exact": 1}
    assert stats["batch"] == [1] * (generated - 1), "the step of the prompt is no decode step"


def test_a_prompt_behind_an_answer_counts_what_the_answer_computed(serving):
    half, worker, records = serving
    first = request("first", 4, hashes=["a", "ab"])
    half.add(first)
    half.update(run(half, worker, new=[("first", 0, 4)], blocks={"first": [4, 2]}, expert=0))
    for at in range(4, 8):
        half.update(run(half, worker, cached=[("first", at, 1)], blocks={"first": [4, 2]}, expert=2))
    first.num_output_tokens = 5
    half.end(first)
    half.add(asked := request("next", 9, hashes=["a", "ab"], generated=1))
    report = run(half, worker, new=[("next", 8, 1)], blocks={"next": [4, 2, 7]}, expert=4)
    half.end(asked)
    half.update(report)
    prompt = {one["request_id"]: decode_counts(one["prompt"]) for one in records()}["next"]
    assert prompt.exact
    assert prompt.counts.tolist() == [[4, 4, 4, 4, 1, 1]] * LAYERS


def test_the_first_exact_counts_of_a_prompt_are_kept(serving):
    """A preempted request is computed again with what it generated, which its prompt's last block then counts too."""
    half, worker, records = serving
    asked = request("a", 6)
    half.add(asked)
    half.update(run(half, worker, new=[("a", 0, 6)], blocks={"a": [4, 2]}, expert=0))
    half.update(run(half, worker, cached=[("a", 6, 1)], blocks={"a": [4, 2]}, expert=2))
    asked.num_output_tokens = 2
    half.orders(output(preempted={"a"}))
    half.update(run(half, worker, cached=[("a", 0, 8)], blocks={"a": [5, 7]}, expert=4))
    asked.num_output_tokens = 3
    half.end(asked)
    half.update(run(half, worker, expert=0))
    (record,) = records()
    assert decode_counts(record["prompt"]).counts.tolist() == [[6, 6, 0, 0, 0, 0]] * LAYERS
    assert (record["prompt"]["exact"], record["exact"]) == (True, True)


@pytest.mark.parametrize("generated", [2, 0])
def test_a_whole_request_that_a_server_aborts_keeps_what_it_completed(serving, generated):
    """So ends one whose server saw a stop string, and one whose client went away."""
    half, worker, records = serving
    asked = request("a", 6, status=RequestStatus.FINISHED_ABORTED)
    half.add(asked)
    half.update(run(half, worker, new=[("a", 0, 6 if generated else 4)], blocks={"a": [4, 2]}, expert=0))
    if generated:
        half.update(run(half, worker, cached=[("a", 6, 1)], blocks={"a": [4, 2]}, expert=2))
    asked.num_output_tokens = generated
    half.end(asked)
    half.add(request("next", 1))
    half.update(run(half, worker, new=[("next", 0, 1)], blocks={"next": [9]}, expert=0))
    assert ["prompt" in one for one in records()] == ([True] if generated else [])
    assert half.stats().data["records"] == ({"exact": 1} if generated else {})


def test_a_prompt_that_another_engine_pulls_leaves_no_record_and_starts_no_count_of_answers(serving):
    half, worker, records = serving
    answer = serve(half, worker, "a", 6, 1, [4, 2], kv=REMOTE)
    assert decode_counts(answer["eldr"]).exact
    assert records() == []
    half.add(request("b", 6, kv=REMOTE))
    report = run(half, worker, new=[("b", 0, 6)], blocks={"b": [4, 2]}, expert=0)
    assert report.union is None
    assert half.stats().data["records"] == {"exact": 1}


def test_what_was_counted_of_a_prompt_goes_with_a_reset(serving):
    half, worker, records = serving
    asked = request("a", 6)
    half.add(asked)
    half.update(run(half, worker, new=[("a", 0, 6)], blocks={"a": [4, 2]}, expert=0))
    half.reset()
    half.update(run(half, worker, cached=[("a", 0, 6)], blocks={"a": [5, 7]}, expert=4))
    half.update(run(half, worker, cached=[("a", 6, 1)], blocks={"a": [5, 7]}, expert=2))
    asked.num_output_tokens = 2
    half.end(asked)
    half.update(run(half, worker, expert=0))
    (record,) = records()
    assert decode_counts(record["prompt"]).counts.tolist() == [[0, 0, 0, 0, 6, 6]] * LAYERS


def test_when_another_rank_fails_to_count_this_one_stops_too(engine, monkeypatch, tmp_path):
    half = Scheduler(config("d"), GROUP, NO_WINDOWS, records=4)
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


def test_after_sleep_what_ran_before_is_not_exact_and_what_runs_then_is(decoding):
    half, worker, records = decoding
    before, after = request("before", 3), request("after", 3)
    half.add(before)
    half.update(run(half, worker, new=[("before", 2, 1)], blocks={"before": [4, 2]}, expert=0))
    half.update(run(half, worker, cached=[("before", 3, 1)], blocks={"before": [4, 2]}, expert=2))
    for table in (
        worker._answers.counts,
        worker._answers.latest,
        worker._answers.positions,
        worker._answers.owner,
    ):
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


def test_counts_of_a_prompt_that_a_step_brings_after_a_reset_are_of_before_it(serving):
    half, worker, records = serving
    asked = request("a", 4)
    half.add(asked)
    in_flight = run(half, worker, new=[("a", 0, 4)], blocks={"a": [4, 2]}, expert=0)
    half.reset()
    half.update(in_flight)
    half.update(run(half, worker, cached=[("a", 0, 4)], blocks={"a": [5, 7]}, expert=4))
    half.update(run(half, worker, cached=[("a", 4, 1)], blocks={"a": [5, 7]}, expert=2))
    asked.num_output_tokens = 2
    half.end(asked)
    half.update(run(half, worker, expert=0))
    (record,) = records()
    assert decode_counts(record["prompt"]).counts.tolist() == [[0, 0, 0, 0, 4, 4]] * LAYERS


def test_a_prompt_that_is_found_again_as_a_whole_after_a_reset_is_summed(serving):
    """What it has generated lets even its last block be found."""
    half, worker, records = serving
    asked = request("a", 4, hashes=["a"])
    half.add(asked)
    half.update(run(half, worker, new=[("a", 0, 4)], blocks={"a": [4, 2]}, expert=0))
    half.reset()
    half.update(run(half, worker, cached=[("a", 4, 1)], blocks={"a": [4, 7]}, expert=2))
    asked.num_output_tokens = 2
    half.end(asked)
    half.update(run(half, worker, expert=0))
    (record,) = records()
    assert (record["prompt"]["exact"], record["prompt"]["tokens"]) == (True, 4)


def test_an_engine_that_counts_prompts_needs_no_shared_memory_for_signatures(engine, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    half, worker = prefill_half(config()), Worker(config(), GROUP, 10, prompts=True, reports=True)
    answer = serve(half, worker, "a", 6, 1, [4, 2], kv=REMOTE)
    assert decode_counts(answer["eldr"]).exact
    assert serve(half, worker, "b", 6, 2, [4, 2]) is None
    assert half.stats().data["records"] == {"exact": 1, "unavailable": 1}


def test_where_the_counts_of_a_long_prompt_are_too_wide_the_record_is_kept_without_them(serving):
    half, _, records = serving
    half.add(asked := request("a", 70_000, generated=1))
    half.orders(output(cached=[("a", 70_000, 1)], blocks={"a": [9] * 17_501}))
    prompt = np.full((LAYERS, EXPERTS), 0)
    prompt[:, :TOP_K] = 70_000
    write = half._ring.write
    half._ring.write = lambda record: b"prompt" not in record and write(record)
    asked.num_output_tokens = 3
    half.end(asked)
    half.update(StepReport({("a", 0): torch.from_numpy(prompt), "a": counts_of(2)}, 1))
    (record,) = records()
    assert (record["tokens"], "prompt" in record) == (2, False)
