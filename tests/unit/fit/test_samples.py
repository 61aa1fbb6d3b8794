from collections import Counter

import numpy as np
import pytest

from eldr.fit.samples import AHEAD, EMPTY, WRONG_SUMS, FitError, make_samples, reservoir, unusable


def choose(records, limit=1000, **fields):
    return reservoir(records, limit, np.random.default_rng(0), **{"model": "m", "since": 0.0} | fields)


def test_unusable_records_are_counted_by_reason(make_record):
    records = [
        make_record(0, 1),
        make_record(1, 2, model="x"),
        make_record(2, 3, exact=False),
        make_record(3, 4, time=1.0),
    ]
    chosen, skipped = choose(records, since=500.0)
    assert [r.request_id for r in chosen] == ["eldr-00000000-0"]
    assert skipped == {"other model": 1, "inexact counts": 1, "older than the look-back": 1}


@pytest.mark.slow
def test_a_long_stream_is_sampled_uniformly_in_bounded_memory(make_record):
    one = make_record(0, 0)
    hits = np.zeros(4)
    for seed in range(40):
        stream = (make_record(n, 0) if n % 250 == 0 else one for n in range(1000))
        chosen, _ = reservoir(stream, 125, np.random.default_rng(seed), model="m", since=0.0)
        assert len(chosen) == 125
        for record in chosen:
            if record is not one:
                hits[int((record.time - 1000) // 250)] += 1
    assert hits.sum() == pytest.approx(40 * 4 / 8, rel=0.6)
    assert (hits > 0).all()


def test_samples_are_sorted_by_time_and_tolerate_unknown_decode(make_record):
    samples = make_samples([make_record(5, 1), make_record(2, 2, decode=None, decode_exact=False)], Counter())
    assert samples.decode_tokens.tolist() == [0, 100]
    assert samples.decoded.tolist() == [1]
    assert samples.prefill.shape == (2, 4, 64)
    assert not samples.decode[0].any()


def test_the_geometry_of_the_majority_wins(make_record):
    odd = make_record(9, 1, n_layers=2, n_experts=128)
    bad = make_record(8, 1, prefill=b"123")
    lies = make_record(7, 1, decode_tokens=99)
    samples = make_samples(
        [make_record(0, 1), make_record(1, 2), odd, bad, lies], Counter({"other model": 3})
    )
    assert len(samples) == 2
    assert samples.skipped == {"other model": 3, "other geometry": 1, "damaged records": 1, WRONG_SUMS: 1}
    with pytest.raises(FitError, match="1 layers that do not sum"):
        make_samples([lies], Counter())


def test_no_samples_say_why():
    with pytest.raises(FitError, match=r"no usable record in the log \(3 other model\)") as caught:
        make_samples([], Counter({"other model": 3}))
    assert caught.value.reason == "NoSamples"
    with pytest.raises(FitError, match="it is empty"):
        make_samples([], Counter())


@pytest.mark.parametrize(
    ("skipped", "remedy"),
    [
        ({"other model": 9}, "check the model's name"),
        ({"other model": 9, "inexact counts": 1}, "engines that count every token"),
        ({"layers that do not sum to tokens x top-k": 9}, "the same version of the plug-in on all engines"),
        ({"damaged records": 9}, "versions that belong together"),
    ],
)
def test_no_samples_say_what_to_do(skipped, remedy):
    """Records of other models hide no fault of one's own."""
    with pytest.raises(FitError) as caught:
        make_samples([], Counter(skipped))
    assert remedy in str(caught.value)
    assert str(caught.value).endswith("try again")
    assert "fit again" not in str(caught.value), "others read logs, too"


def bumped(raw: bytes) -> bytes:
    counts = np.frombuffer(raw, np.uint16 if len(raw) == 4 * 64 * 2 else np.uint32).copy()
    counts[7] += 1
    return counts.tobytes()


def test_inexact_decode_counts_need_not_sum_up(make_record):
    samples = make_samples([make_record(0, 1, decode_tokens=7, decode_exact=False)], Counter())
    assert samples.decode_tokens.tolist() == [0]


@pytest.mark.parametrize(("tokens", "dtype"), [(1000, np.uint16), (100_000, np.uint32)])
def test_counts_take_no_more_room_than_they_need(make_record, tokens, dtype):
    counts = np.zeros((4, 64), np.uint32)
    counts[:, :4] = tokens
    samples = make_samples(
        [make_record(0, 1), make_record(1, 1, prefill=counts.tobytes(), prompt_tokens=tokens)], Counter()
    )
    assert samples.prefill.dtype == dtype
    assert samples.prefill.max() == tokens
    assert samples.decode.dtype == np.uint16


def piled(raw: bytes) -> bytes:
    """Return counts with the same sum per layer, all of it on one expert."""
    counts = np.frombuffer(raw, np.uint16 if len(raw) == 4 * 64 * 2 else np.uint32).reshape(4, 64)
    all_on_one = np.zeros_like(counts)
    all_on_one[:, 0] = counts.sum(axis=1)
    return all_on_one.tobytes()


NOTHING = bytes(4 * 64 * 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"decode": NOTHING}, "layers that do not sum to tokens x top-k"),
        ({"prompt_tokens": 2**62}, "layers that do not sum to tokens x top-k"),
        ({"prompt_tokens": lambda tokens: tokens + 1}, "layers that do not sum to tokens x top-k"),
        ({"prefill": bumped}, "layers that do not sum to tokens x top-k"),
        ({"decode": bumped}, "layers that do not sum to tokens x top-k"),
        ({"prefill": piled}, "experts with more hits than there were tokens"),
        ({"decode": piled}, "experts with more hits than there were tokens"),
        ({"time": float("nan")}, "damaged records"),
        ({"in_flight": -1}, "damaged records"),
        ({"in_flight": 2**64 - 1}, "damaged records"),
        ({"prompt_tokens": 0, "prefill": NOTHING, "decode": None, "top_k": 0}, "damaged records"),
        ({"n_layers": -4, "n_experts": -64}, "damaged records"),
        ({"n_layers": 0}, "damaged records"),
    ],
)
def test_impossible_records_are_left_out_and_counted(make_record, fields, reason):
    good = [make_record(n, n) for n in range(3)]
    filled = {
        name: value(getattr(good[1], name)) if callable(value) else value for name, value in fields.items()
    }
    chosen, skipped = choose([good[0], make_record(1, 1, **filled), good[2]])
    samples = make_samples(chosen, skipped)
    assert samples.skipped == {reason: 1}
    assert len(samples) == 2
    assert np.isfinite(samples.times).all()
    assert samples.in_flight.dtype == np.int64


def test_prompts_without_tokens_have_no_preference(make_record):
    empty = make_record(0, 0, prompt_tokens=0, prefill=NOTHING)
    samples = make_samples([empty, make_record(1, 1)], Counter())
    assert not samples.prefill[0].any()
    assert samples.decoded.tolist() == [0, 1]


def test_records_that_lie_take_nobodys_place(make_record):
    lies = {"prefill": bytes(4 * 64 * 2)}
    log = [make_record(n, n % 50, **(lies if n % 10 else {})) for n in range(2000)]
    chosen, skipped = reservoir(log, 200, np.random.default_rng(1), model="m", since=0.0)
    assert skipped == {WRONG_SUMS: 1800}
    assert len(make_samples(chosen, skipped)) == 200


def test_records_of_the_future_and_without_tokens_are_left_out(make_record):
    good = make_record(0, 0)
    assert unusable(good, good.model, until=good.time) is None
    assert unusable(make_record(0, 0, time=good.time + 1), good.model, until=good.time) == AHEAD
    assert unusable(make_record(0, 0, prefill=NOTHING, prompt_tokens=0), good.model) == EMPTY
