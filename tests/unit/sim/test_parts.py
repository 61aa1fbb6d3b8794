import asyncio
import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.sim import traces
from eldr.sim.batch import Batch, Sequence
from eldr.sim.engine import Engine, EngineSettings
from eldr.sim.telemetry import ActivationRing
from eldr.wire import ExpertCounts, decode_counts


@pytest.fixture(scope="module")
def captured():
    return traces.load()


def test_captured_activations_are_consistent(captured):
    assert len(captured) == 768
    per_layer = captured.prefill_counts.sum(axis=2)
    np.testing.assert_array_equal(
        per_layer, np.repeat(captured.prompt_tokens[:, None] * captured.top_k, 4, axis=1)
    )


def test_tag_names_the_record_and_other_prompts_hash(captured):
    assert captured.record_of(f"please {traces.tag(41)} now") == 41
    assert captured.record_of("hello") == captured.record_of("hello") != captured.record_of("hello!")


def test_fitting_and_evaluation_records_are_disjoint(captured):
    fitting, evaluation = captured.split()
    assert not set(fitting) & set(evaluation)
    assert len(fitting) == len(evaluation) == 384
    with pytest.raises(ValueError, match="kind 'klingon': known are"):
        captured.split(("klingon",))


@pytest.mark.slow
@given(record=st.integers(0, 767), tokens=st.integers(0, 300))
def test_decode_counts_are_what_the_steps_used(record, tokens):
    captured = traces.load()
    counts = np.zeros((4, 64), int)
    for step in range(1, tokens + 1):
        for layer in range(4):
            for expert in captured.experts(record, step)[layer]:
                counts[layer, expert] += 1
    np.testing.assert_array_equal(captured.decode_counts(record, tokens), counts)


def test_batch_unions_are_those_of_a_brute_force(captured):
    batch = Batch(captured)
    emitted: list[tuple[str, int]] = []
    for record, length in ((0, 3), (100, 1), (200, 2)):
        batch.add(
            Sequence(
                str(record),
                record,
                "kv",
                length,
                lambda new, r=record: emitted.extend((str(r), i) for i in new),
            )
        )
    for step in range(3):
        alive = [r for r, length in ((0, 3), (100, 1), (200, 2)) if length > step]
        expected = np.mean(
            [len({e for r in alive for e in captured.experts(r, step)[layer]}) for layer in range(4)]
        )
        assert batch.begin() == pytest.approx(expected)
        finished = batch.finish()
        assert [s.request_id for s in finished] == {0: ["100"], 1: ["200"], 2: ["0"]}[step]
    assert batch.running == []
    assert sorted(emitted) == [("0", 0), ("0", 1), ("0", 2), ("100", 0), ("200", 0), ("200", 1)]


def test_drafts_load_experts_and_become_tokens_as_their_share_says(captured):
    batch, emitted = Batch(captured, drafts=2, accepted=0.75), []
    batch.add(Sequence("r", 0, "kv", 9, emitted.append))
    begun = 0
    while batch.running:
        fed = [captured.experts(0, step) for step in range(begun, begun + 3)]
        assert batch.begin() == np.mean([len({*np.ravel([one[layer] for one in fed])}) for layer in range(4)])
        finished = batch.finish()
        begun = emitted[-1].stop
    assert emitted == [range(2), range(2, 5), range(5, 7), range(7, 9)], "no token beyond the last"
    assert [sequence.generated for sequence in finished] == [9]


def test_a_preempted_request_that_is_aborted_leaves_nothing_behind(captured):
    settings = EngineSettings(
        role="decode", model="m", address=("h", 1), kv_blocks=8, block_size=16, max_model_len=128,
        context_seconds_per_token=1e-6,
    )  # fmt: skip

    async def run():
        engine, loop = Engine(settings, captured), asyncio.get_running_loop()
        running = loop.create_task(engine._loop(loop))
        async with contextlib.AsyncExitStack() as first, contextlib.AsyncExitStack() as second:
            for stack in (first, second):
                seat = await stack.enter_async_context(engine.seat(60))
                await engine.start(Sequence("r", 0, "kv", 60, lambda _: None, 60, seat))
            while not engine._seats:
                await asyncio.sleep(0.001)
            assert engine.pool.free == 3, "who came last has none, and the first has one more"
            assert engine._occupied == 1
            await second.aclose()
            assert not engine._seats
        assert engine.pool.free == 8
        assert engine._occupied == 0
        assert not engine.has_work()
        running.cancel()
        assert engine.step_time.seconds(1, 0.0, 1000) - engine.step_time.seconds(1, 0.0) == pytest.approx(
            1e-3
        )

    asyncio.run(run())


def test_who_comes_in_a_step_waits_for_the_next_and_who_leaves_gets_nothing(captured):
    batch, emitted = Batch(captured), []

    def sequence(name):
        return Sequence(name, 0, "kv", 2, lambda new: emitted.extend((name, at) for at in new))

    first, leaver, late = map(sequence, ("first", "leaver", "late"))
    batch.add(first)
    batch.add(leaver)
    batch.begin()
    batch.add(late)
    batch.remove(leaver)
    assert batch.finish() == []
    assert emitted == [("first", 0)]
    batch.begin()
    assert batch.finish() == [first]
    assert emitted == [("first", 0), ("first", 1), ("late", 0)]
    batch.begin()
    assert batch.finish() == [late]
    assert batch.running == []


def counts(n: int) -> ExpertCounts:
    return ExpertCounts(counts=np.full((2, 3), n, np.uint16), top_k=1, tokens=3, exact=True)


def test_activation_ring_reads_by_cursor_prefix_and_boot():
    ring = ActivationRing(3)
    for n in range(5):
        ring.append(f"{'a' if n % 2 else 'b'}-{n}", counts(n))
    page = ring.read(after=0, prefix="", limit=2, boot="")
    assert [r["request_id"] for r in page["records"]] == ["b-2", "a-3"]
    assert (page["lost"], page["next"]) == (2, 4)
    assert decode_counts(page["records"][0]).counts.tolist() == [[2, 2, 2], [2, 2, 2]]
    only = ring.read(after=0, prefix="a-", limit=9, boot="")
    assert [r["request_id"] for r in only["records"]] == ["a-3"]
    assert only["next"] == 5
    for boot in ("another", ring.boot, ""):  # of an engine before this one
        assert ring.read(after=99, prefix="", limit=9, boot=boot) == ring.read(
            after=0, prefix="", limit=9, boot=""
        )
    assert ring.read(after=0, prefix="", limit=9, boot="", rate=0.0)["records"] == []
