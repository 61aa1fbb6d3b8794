"""The scheduler and worker halves against vLLM's own step types: who gets which counts, when, and in which order."""

import errno
import os
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.request import RequestStatus

from eldr.contract import LATE_PREFILLED, PULL_BEFORE_KEY
from eldr.engine import scheduler
from eldr.engine.capture.kernels import FAILED
from eldr.engine.capture.union import MIXED
from eldr.engine.figures import N_FIGURES
from eldr.engine.messages import StepReport
from eldr.engine.scheduler import DEFAULT_RECORDS, kept_records
from eldr.wire import decode_counts
from tests.engine.fakes import LAYERS
from tests.engine.halves import (
    EXPERTS,
    REMOTE,
    TOP_K,
    Halves,
    counts_of,
    output,
    prefill_half,
    request,
    sent,
    worker_of,
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
        return prefill_half()

    @pytest.fixture
    def ask(self, half):
        """Return a function that takes a request and ends it; what its answer says of experts."""

        def asked(prompt=10, **more):
            half.add(request("a", prompt, kv=REMOTE, **more))
            return half.end(request("a", prompt, kv=REMOTE))["eldr"]

        return asked

    def test_a_chunked_prompt_is_summed_with_its_last_chunk_over_the_blocks_of_the_prompt(self, half):
        half.add(request("a", 10, kv=REMOTE))
        blocks = {"a": [7, 3, 5, 8]}  # the last one is for tokens after the prompt
        assert half.orders(output(new=[("a", 0, 6)], blocks=blocks)).finishing == {}
        assert half.orders(output(cached=[("a", 6, 4)], blocks=blocks)).finishing == {("a", 0): [7, 3, 5]}
        assert half.orders(output(cached=[("a", 10, 1)], blocks=blocks)).finishing == {}

    def test_the_answer_is_filled_in_after_it_was_handed_over(self, half, ask):
        answer = ask()
        assert answer["unavailable"] == "no counts for this request"
        half.update(sent(StepReport({("a", 0): counts_of(10)})))
        value = decode_counts(answer)
        assert (value.tokens, value.top_k, value.exact, value.shape) == (10, TOP_K, True, (LAYERS, EXPERTS))
        assert half.stats().data["records"] == {"exact": 1}
        assert half.stats() is None

    def test_a_prompt_that_is_summed_again_after_a_failed_load_is_one_record(self, half):
        half.add(request("a", 10, kv=REMOTE))
        for tokens in (9, 10):
            half.update(StepReport({("a", 0): counts_of(tokens)}))
        assert decode_counts(half.end(request("a", 10, kv=REMOTE))["eldr"]).exact
        assert half.stats().data["records"] == {"exact": 1}

    def test_missing_tokens_make_it_inexact(self, half, ask):
        answer = ask()
        half.update(StepReport({("a", 0): counts_of(9)}))
        assert decode_counts(answer).exact is False

    def test_long_prompts_use_wider_numbers(self, half, ask):
        answer = ask(70_000)
        half.update(StepReport({("a", 0): counts_of(70_000)}))
        assert answer["dtype"] == "uint32"
        assert decode_counts(answer).counts.max() == 70_000

    def test_an_id_that_comes_again_gets_no_counts_of_the_one_that_was_aborted(self, half, ask):
        half.add(request("a", 10, kv=REMOTE))
        assert half.end(request("a", 10, kv=REMOTE, status=RequestStatus.FINISHED_ABORTED)) is None
        half.add(request("a", 10, kv=REMOTE))
        half.update(StepReport({("a", 0): counts_of(9)}))  # scheduled ahead, and reported late
        assert half.stats() is None
        answer = half.end(request("a", 10, kv=REMOTE))["eldr"]
        half.update(StepReport({("a", 1): counts_of(10)}))
        assert decode_counts(answer).exact

    def test_a_prompt_that_is_streamed_in_has_no_counts_and_says_why(self, half):
        half.add(request("a", 10, kv=REMOTE, resumable=True))
        assert half.orders(output(new=[("a", 0, 10)], blocks={"a": [1, 2, 3]})).finishing == {}
        answer = half.end(request("a", 10, kv=REMOTE))
        assert answer == {"eldr": {"v": 1, "unavailable": "the prompt was streamed in"}}
        assert half.stats().data["records"] == {"unavailable": 1}


def test_decode_publishes_what_generated_tokens_activated_and_measures_every_step(decoding):
    name = "cmpl-eldr-0a1b2c3d-7-1-0-0123abcd"
    asked = decoding.add(name, 6, [4, 2, 8], kv={"do_remote_prefill": True})
    for at, expert in ((5, 0), (6, 2), (7, 2), (8, 4)):  # the prompt's last token first
        decoding.step((name, at, 1), expert=expert)
    assert decoding.end(asked, 4) is None
    decoding.step()
    (record,) = decoding.records()
    assert record["request_id"] == "eldr-0a1b2c3d-7"
    value = decode_counts(record)
    assert value.counts.tolist() == [[0, 0, 2, 2, 1, 1]] * LAYERS
    assert (value.tokens, value.exact) == (3, True)
    stats = decoding.half.stats().data
    assert stats["active"] == [[TOP_K] * LAYERS] * 4
    assert stats["batch"] == [1] * 4
    assert stats["context"] == [6, 7, 8, 9]
    assert all(seconds > 0 for seconds in stats["seconds"])
    assert stats["records"] == {"exact": 1}


def measured(half, *steps):
    """Take reports of steps of one request, each (tokens before, tokens, requests of all ranks); return the statistics."""
    union = torch.tensor([TOP_K] * LAYERS, dtype=torch.int32)
    chosen = torch.ones(LAYERS, N_FIGURES, dtype=torch.int32)
    half.add(request("a", 6, kv={"do_remote_prefill": True}))
    for number, (done, tokens, of_all) in enumerate(steps, 1):
        half.orders(output(cached=[("a", done, tokens)], blocks={"a": [4, 2, 8]}))
        requests = None if of_all is None else torch.tensor(of_all)
        half.update(sent(StepReport({}, number, union=union, balance=chosen, requests=requests)))
    return half.stats().data


def test_a_step_that_is_scheduled_ahead_of_time_lasts_from_the_end_of_the_one_before(decoding, monkeypatch):
    clock = iter([1.0, 2.0, 3.0, 7.0])  # both steps begin before the first one ends
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    half, union = decoding.half, torch.tensor([TOP_K] * LAYERS, dtype=torch.int32)
    half.add(request("a", 6, kv={"do_remote_prefill": True}))
    for done in (6, 7):
        half.orders(output(cached=[("a", done, 1)], blocks={"a": [4, 2, 8]}))
    for number in (1, 2):
        half.update(StepReport({}, number, union=union))
    assert half.stats().data["seconds"] == [2.0, 4.0]


def test_of_a_step_of_several_ranks_one_tells(decoding):
    """Requests of all ranks stand in the report, 0 where another rank tells."""
    stats = measured(decoding.half, (6, 1, 5), (7, 1, 0), (8, 1, 7))
    assert stats["batch"] == stats["fed"] == [5, 7]
    assert stats["context"] == [5 * 7, 7 * 9], "other ranks hold about as much"
    assert len(stats["active"]) == len(stats["seconds"]) == len(stats["balance"]) == 2


def test_steps_that_compute_prompts_on_any_rank_are_not_measured(decoding):
    stats = measured(decoding.half, (0, 4, None), (4, 2, None), (6, 1, 3), (7, 1, 1 + MIXED))
    assert stats["batch"] == stats["fed"] == [3]
    assert len(stats["active"]) == len(stats["seconds"]) == len(stats["balance"]) == 1


def serve(at, name, prompt, generated, blocks, **more):
    """Serve a request whole: its prompt uses experts 0 and 1, what it generates experts 2 and 3."""
    asked = at.add(name, prompt, blocks, **more)
    report = at.report((name, 0, prompt))
    for position in range(prompt, prompt + generated - 1):
        at.half.update(report)
        report = at.report((name, position, 1), expert=2)
    answer = at.end(asked, generated)
    at.half.update(report)
    at.step()
    return answer


@pytest.mark.parametrize("generated", [1, 4])
def test_an_engine_that_does_both_has_prompt_and_answer_in_a_record(serving, generated):
    assert serve(serving, "a", 6, generated, [4, 2, 8]) is None, "clients get no counts"
    (record,) = serving.records()
    prompt, answer = decode_counts(record["prompt"]), decode_counts(record)
    assert (prompt.tokens, prompt.exact, answer.tokens, answer.exact) == (6, True, generated - 1, True)
    assert prompt.counts.tolist() == [[6, 6, 0, 0, 0, 0]] * LAYERS
    assert answer.counts.tolist() == [[0, 0, generated - 1, generated - 1, 0, 0]] * LAYERS
    stats = serving.half.stats().data
    assert stats["records"] == {"exact": 1}
    assert stats["batch"] == [1] * (generated - 1), "the step of the prompt is no decode step"


def test_a_prompt_behind_an_answer_counts_what_the_answer_computed(serving):
    serve(serving, "first", 4, 5, [4, 2], hashes=["a", "ab"])
    asked = serving.add("next", 9, [4, 2, 7], hashes=["a", "ab"])
    report = serving.report(("next", 8, 1), expert=4)
    serving.end(asked, 1)
    serving.half.update(report)
    prompt = {one["request_id"]: decode_counts(one["prompt"]) for one in serving.records()}["next"]
    assert prompt.exact
    assert prompt.counts.tolist() == [[4, 4, 4, 4, 1, 1]] * LAYERS


def prompt_in_record(at, asked, generated):
    """End a request, and return what its record says of its prompt."""
    at.end(asked, generated)
    at.step()
    (record,) = at.records()
    assert record["exact"]
    return decode_counts(record["prompt"])


def test_the_first_exact_counts_of_a_prompt_are_kept(serving):
    """A preempted request is computed again with what it generated, which its prompt's last block then counts too."""
    asked = serving.add("a", 6, [4, 2])
    serving.step(("a", 0, 6))
    serving.step(("a", 6, 1), expert=2)
    asked.num_output_tokens = 2
    serving.half.orders(output(preempted={"a"}))
    serving.blocks["a"] = [5, 7]
    serving.step(("a", 0, 8), expert=4)
    prompt = prompt_in_record(serving, asked, 3)
    assert prompt.exact
    assert prompt.counts.tolist() == [[6, 6, 0, 0, 0, 0]] * LAYERS


@pytest.mark.parametrize("generated", [2, 0])
def test_a_whole_request_that_a_server_aborts_keeps_what_it_completed(serving, generated):
    """So ends one whose server saw a stop string, and one whose client went away."""
    asked = serving.add("a", 6, [4, 2], status=RequestStatus.FINISHED_ABORTED)
    serving.step(("a", 0, 6 if generated else 4))
    if generated:
        serving.step(("a", 6, 1), expert=2)
    serving.end(asked, generated)
    serving.add("next", 1, [9])
    serving.step(("next", 0, 1))
    assert ["prompt" in one for one in serving.records()] == ([True] if generated else [])
    assert serving.half.stats().data["records"] == ({"exact": 1} if generated else {})


def test_a_prompt_that_another_engine_pulls_leaves_no_record_and_starts_no_count_of_answers(serving):
    assert decode_counts(serve(serving, "a", 6, 1, [4, 2], kv=REMOTE)["eldr"]).exact
    assert serving.records() == []
    serving.add("b", 6, [4, 2], kv=REMOTE)
    assert "union" not in serving.report(("b", 0, 6)).figures()
    assert serving.half.stats().data["records"] == {"exact": 1}


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_was_counted_of_a_prompt_goes_with_a_reset(serving, in_flight):
    """Also what a step brings that ran before it."""
    asked = serving.add("a", 6, [4, 2])
    report = serving.report(("a", 0, 6))
    if in_flight:
        serving.half.reset()
        serving.half.update(report)
    else:
        serving.half.update(report)
        serving.half.reset()
    serving.blocks["a"] = [5, 7]
    serving.step(("a", 0, 6), expert=4)
    serving.step(("a", 6, 1), expert=2)
    assert prompt_in_record(serving, asked, 2).counts.tolist() == [[0, 0, 0, 0, 6, 6]] * LAYERS


def test_a_prompt_that_is_found_again_as_a_whole_after_a_reset_is_summed(serving):
    """What it has generated lets even its last block be found."""
    asked = serving.add("a", 4, [4, 2], hashes=["a"])
    serving.step(("a", 0, 4))
    serving.half.reset()
    serving.blocks["a"] = [4, 7]
    serving.step(("a", 4, 1), expert=2)
    prompt = prompt_in_record(serving, asked, 2)
    assert (prompt.exact, prompt.tokens) == (True, 4)


def test_when_another_rank_fails_to_count_this_one_stops_too(decoding):
    asked = decoding.add("a", 6, [4, 2, 8], kv={"do_remote_prefill": True})
    decoding.half.orders(output(cached=[("a", 6, 1)], blocks=decoding.blocks))
    decoding.end(asked, 3)
    union = torch.tensor([TOP_K] * LAYERS, dtype=torch.int32)
    decoding.half.update(sent(StepReport({"a": counts_of(2)}, 1, union=union, requests=torch.tensor(FAILED))))
    assert decoding.half.stats().data["records"] == {"unavailable": 1}


def test_a_request_with_one_token_has_an_empty_record_and_nobody_waits_for_it(decoding):
    asked = decoding.add("one", 6, [4, 2])
    report = decoding.report(("one", 5, 1))
    decoding.end(asked, 1)  # vLLM ends a request before it hands over the step's report
    decoding.half.update(report)
    (record,) = decoding.records()
    value = decode_counts(record)
    assert (record["request_id"], value.tokens, value.exact) == ("one", 0, True)
    assert value.counts.tolist() == [[0] * EXPERTS] * LAYERS


def test_the_record_of_an_aborted_request_with_one_token_waits_for_no_other_request(serving):
    asked = serving.add("one", 6, [4, 2])
    serving.step(("one", 0, 6))
    serving.end(asked, 1)
    serving.step()  # vLLM's own, without a token: a request has finished
    (record,) = serving.records()
    assert (record["request_id"], decode_counts(record).exact) == ("one", True)
    assert serving.half.stats().data["records"] == {"exact": 1}


def test_a_prompt_that_is_computed_here_for_it_came_too_late_to_be_pulled_does_not_count(decoding):
    late = decoding.add("late", 6, [4, 2, 8], kv={"do_remote_prefill": True, PULL_BEFORE_KEY: 1.0})
    assert decoding.half.pulls.refuse(late)
    decoding.half.pulls.allocated(late)
    for at, tokens, expert in ((0, 4, 0), (4, 2, 0), (6, 1, 2)):  # the prompt, in two chunks
        decoding.step(("late", at, tokens), expert=expert)
    decoding.end(late, 2)
    decoding.step()
    (record,) = decoding.records()
    value = decode_counts(record)
    assert value.counts.tolist() == [[0, 0, 1, 1, 0, 0]] * LAYERS
    assert (value.tokens, value.exact) == (1, True)
    stats = decoding.half.stats().data
    assert (stats["records"], stats["late"]) == ({"exact": 1}, {LATE_PREFILLED: 1})


def test_requests_that_never_ran_or_are_streamed_in_leave_no_record(decoding):
    decoding.add("never ran", 6)
    decoding.add("streamed", 6, [4, 2], resumable=True)
    decoding.step(("streamed", 0, 6))
    decoding.step(("streamed", 6, 1))
    for name in ("never ran", "streamed"):
        decoding.half.end(request(name, 6))
    decoding.step()
    assert decoding.records() == []
    assert decoding.half.stats().data["records"] == {"unavailable": 1}


def test_after_sleep_what_ran_before_is_not_exact_and_what_runs_then_is(decoding):
    before = decoding.add("before", 3, [4, 2])
    decoding.step(("before", 2, 1))
    decoding.step(("before", 3, 1), expert=2)
    rows = decoding.worker._answers
    for table in (rows.counts, rows.latest, rows.positions, rows.owner):
        table.fill_(2**20)  # whatever a vLLM does to them: up to 0.33 they stay as they were
    decoding.half.reset()
    after = decoding.add("after", 3, [4, 2])
    decoding.blocks["before"] = [7, 8]
    decoding.step(("after", 2, 1), ("before", 0, 4))
    decoding.step(("before", 4, 1), ("after", 3, 1), expert=4)
    decoding.end(before, 3)
    decoding.end(after, 2)
    decoding.step()
    found = {record["request_id"]: decode_counts(record) for record in decoding.records()}
    assert (found["before"].exact, found["after"].exact) == (False, True)
    assert found["after"].counts.tolist() == [[0, 0, 0, 0, 1, 1]] * LAYERS


def test_an_engine_that_counts_prompts_needs_no_shared_memory_for_signatures(engine, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    at = Halves(prefill_half(), worker_of(prompts=True))
    assert decode_counts(serve(at, "a", 6, 1, [4, 2], kv=REMOTE)["eldr"]).exact
    assert serve(at, "b", 6, 2, [4, 2]) is None
    assert at.half.stats().data["records"] == {"exact": 1, "unavailable": 1}
    at.half._counting.stop("for another reason")
    at.half.end(at.add("c", 6, [4, 2], kv=None))
    assert at.half.stats().data["records"] == {"unavailable": 1}, "each request once"


def test_where_the_counts_of_a_long_prompt_are_too_wide_the_record_is_kept_without_them(serving):
    asked = serving.add("a", 70_000)
    serving.half.orders(output(cached=[("a", 70_000, 1)], blocks={"a": [9] * 17_501}))
    write = serving.half._ring.write
    serving.half._ring.write = lambda record: b"prompt" not in record and write(record)
    serving.end(asked, 3)
    serving.half.update(StepReport({("a", 0): counts_of(70_000), "a": counts_of(2)}, 1))
    (record,) = serving.records()
    assert (record["tokens"], "prompt" in record) == (2, False)
