"""Whatever engines are started with and whatever happens to requests: what is called exact is right, and nothing is left behind.

More seeds than the default: ``ELDR_FUZZ_SEEDS=400``. A failure names its seed, and ``fuzz(seed)`` alone repeats it.
"""

import os
import random
from collections import Counter

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import RequestStatus

from eldr.contract import PULL_BEFORE_KEY
from eldr.engine import worker as worker_half
from eldr.engine.decode.tracking import n_rows
from eldr.engine.steps import is_pulled
from eldr.wire import decode_counts
from tests.engine.fakes import REMOTE
from tests.engine.fuzz_runner import STOP, STORED, VOCABULARY, counts_of
from tests.engine.fuzzing import Setting

SEEDS = int(os.environ.get("ELDR_FUZZ_SEEDS", "16"))
REQUESTS = 45
KINDS = [
    f"{role} {scheduling} {drafts}"
    for role in ("prefill", "decode")
    for scheduling in ("synchronous", "asynchronous")
    for drafts in ("without drafts", "with drafts", "with heads")
]
EVENTS = {
    "prefill": ["preempted", "aborted", "failed", "lost", "reset"],
    "decode": ["preempted", "aborted", "failed", "late", "reset", "reset with connectors"],
}


class Traffic:
    """Requests with common prefixes, and what happens to them.

    Attributes
    ----------
    seen : Counter
        What happened, how often.
    forgotten : set of str
        Requests whose counts went with a reset of the connectors.
    """

    def __init__(self, engine, chance):
        self.engine, self._chance = engine, chance
        self._stems = [[chance.randrange(VOCABULARY) for _ in range(40)] for _ in range(3)]
        self.seen, self.forgotten = Counter(), set()

    def run(self):
        chance, engine = self._chance, self.engine
        for _ in range(REQUESTS):
            prompt = self._prompt()
            engine.add(prompt, self._sampling(len(prompt)))
            for _ in range(chance.randrange(5)):
                engine.step()
            if chance.random() < 0.08:
                self._abort()
            if chance.random() < 0.05:
                self._reset()
        engine.run()
        self.seen["preempted"] = sum(request.num_preemptions for request in engine.requests.values())
        self.seen += Counter(late=engine.late, failed=engine.failed, lost=engine.lost)

    def _prompt(self):
        chance, engine = self._chance, self.engine
        ended = [engine.requests[name] for name in engine.answers]
        if ended and engine.setting.role == "prefill" and chance.random() < 0.2:  # a conversation goes on
            return [*chance.choice(ended).all_token_ids[:50], chance.randrange(VOCABULARY)]
        tail = [chance.randrange(VOCABULARY) for _ in range(chance.randrange(6))]
        return chance.choice(self._stems)[: chance.randrange(1, 36)] + tail

    def _sampling(self, prompt_tokens):
        prefill = self.engine.setting.role == "prefill"
        params = self._stored(prompt_tokens) if prefill else self._pulled()
        return SamplingParams(
            max_tokens=self._chance.choice([1, 1, 2, 7, 18] if prefill else [1, 2, 3, 9, 25]),
            stop_token_ids=[STOP] if self._chance.random() < 0.5 else [],
            extra_args={"kv_transfer_params": params},
        )

    def _stored(self, prompt_tokens):
        chance = self._chance
        params = {"do_remote_decode": chance.random() < 0.6}  # or the engine answers itself
        if chance.random() < 0.2:
            params[STORED] = chance.randrange(prompt_tokens), chance.random() < 0.5
        return params

    def _pulled(self):
        """Return the offer of a prompt's KV: none, without a deadline, or with one that passed, passes soon, or never does."""
        before = self.engine.clock.value + self._chance.choice([-5, 2.5, 1e6])
        pulled = {**REMOTE}
        return self._chance.choice([{}, pulled, pulled | {PULL_BEFORE_KEY: before}])

    def _abort(self):
        live = [name for name in self.engine.requests if name in self.engine.scheduler.requests]
        if live:
            self.engine.abort(self._chance.choice(live))
            self.seen["aborted"] += 1

    def _reset(self):
        requests = self.engine.scheduler.requests
        if any(one.status == RequestStatus.WAITING_FOR_REMOTE_KVS for one in requests.values()):
            return  # vLLM cannot
        connectors = self._chance.random() < 0.5
        if not self.engine.reset(connectors=connectors):
            return
        self.seen["reset with connectors" if connectors else "reset"] += 1
        if connectors:
            self.forgotten |= self.engine.requests.keys() - self.engine.records().keys()


def check_prefill(engine):
    """Check all signatures of an engine; return how many are exact, and not."""
    checked, half = Counter(), engine.connector._scheduler
    assert not half._prompts._prompts
    assert not half._prompts._handed_out
    for name, answer in engine.answers.items():
        if answer is None:  # nobody asked for it, or the request failed
            continue
        checked[signature(engine.requests[name], answer)] += 1
    return checked


def signature(request, reported):
    """Check what is reported of a prompt; return whether it is exact."""
    value = decode_counts(reported)
    right = np.array_equal(value.counts, counts_of(request.prompt_token_ids, 0, request.num_prompt_tokens))
    assert right or not value.exact, f"signature of {request.request_id}"
    return "exact signatures" if value.exact else "inexact signatures"


def check_records(engine, forgotten):
    """Check all records of an engine, that none is missing, and that nothing is left; return how many are exact, and not."""
    checked, records = Counter(), engine.records()
    for name, record in records.items():
        request, value = engine.requests[name], decode_counts(record)
        prompt, fed = request.num_prompt_tokens, max(0, request.num_output_tokens - 1)
        right = np.array_equal(value.counts, counts_of(request.all_token_ids, prompt, prompt + fed))
        assert (right and value.tokens == fed) or not value.exact, f"record of {name}"
        assert value.exact or name in forgotten, (
            f"record of {name} is not exact, though nothing was forgotten"
        )
        checked["exact records" if value.exact else "inexact records"] += 1
        if "prompt" in record:
            checked[f"{signature(request, record['prompt'])} in records"] += 1
    whole = {name for name, one in engine.requests.items() if not is_pulled(one)}
    assert records.keys() <= whole
    ended = {name for name in engine.answers if engine.requests[name].num_output_tokens} & whole
    assert ended <= records.keys() | forgotten, "requests without a record"
    half = engine.connector._scheduler
    assert not half._ended
    assert not half._empty
    assert len(half._tracker) == 0
    assert sorted(half._tracker._free) == list(range(n_rows(engine.connector._vllm_config)))
    pulls = half.pulls
    assert not any((pulls._deadlines, pulls._pulling, pulls._held, pulls._refused))
    return checked


@pytest.fixture
def fuzz(simulated):
    """Return a function that serves the requests of a seed and checks what was counted; it returns what was seen."""

    def run(seed):
        chance = random.Random(seed)
        setting = Setting.drawn(seed, chance)
        try:
            with simulated(setting, chance) as engine:
                traffic = Traffic(engine, chance)
                traffic.run()
                for counting in (engine.connector._counting, engine.worker._counting):
                    assert not counting.stopped
                checked = check_records(engine, traffic.forgotten)
                if setting.role == "prefill":
                    checked += check_prefill(engine)
        except BaseException as error:
            error.add_note(f"seed {seed}: {setting}")
            raise
        events = Counter({f"{setting.role}: {event}": n for event, n in traffic.seen.items()})
        return events + checked + kind(setting)

    return run


def kind(setting):
    """Return what kind of engine it is, to be counted."""
    scheduling = "asynchronous" if setting.asynchronous else "synchronous"
    drafts = ("with heads" if setting.heads else "with drafts") if setting.drafts else "without drafts"
    return Counter([f"{setting.role} {scheduling} {drafts}"])


@pytest.mark.timeout(300 + 10 * SEEDS)
def test_what_is_called_exact_is_right_whatever_happens(fuzz):
    seen = Counter()
    for seed in range(SEEDS):
        seen += fuzz(seed)
    events = [f"{role}: {event}" for role, happened in EVENTS.items() for event in happened]
    assert not [what for what in KINDS + events if not seen[what]]
    assert seen["exact signatures"] > 100
    assert seen["exact records"] > 200
    assert seen["exact signatures in records"] > 50
    # or else every engine would do that takes nothing for certain, or knows of nothing that can go wrong
    assert seen["inexact signatures"] > 10
    assert seen["inexact records"]


def test_a_step_that_is_taken_for_known_too_early_is_noticed(fuzz, monkeypatch):
    rows = worker_half.request_rows
    monkeypatch.setattr(
        worker_half, "request_rows", lambda *args, window, **more: rows(*args, window=window // 2, **more)
    )
    with pytest.raises(AssertionError, match="record of"):
        for seed in (7, 15):
            fuzz(seed)
