"""What routers measure of placement: telemetry read, traffic counted."""

import numpy as np
import pytest

from eldr.contract import BATCH_BUCKETS, METRIC_BATCH_SIZE, METRIC_FED_TOKENS, SIMILARITY_BINS
from eldr.core.saving import Batches
from eldr.sim.telemetry import EngineMetrics
from eldr.wire import ExpertCounts
from eldr_router.engines.exposition import read_steps, read_sums, window
from eldr_router.placement.saving import Savings
from eldr_router.placement.traffic import Traffic


def exposition(*batches, active=10.0):
    """The metrics page of an engine whose steps had these sizes."""
    metrics = EngineMetrics("m", 16)
    for size in batches:
        metrics.batch_size.observe(size)
        metrics.active_experts.observe(active)
        metrics.step_seconds.observe(0.01)
    page = metrics.render()  # of an engine that does not report what it fed
    return b"".join(line for line in page.splitlines(keepends=True) if METRIC_FED_TOKENS.encode() not in line)


def test_steps_are_read_by_size():
    page = exposition(1, 3, 3, 9, 600)
    steps = read_steps(page, read_sums(page))
    assert steps.active == 50.0
    found = {bound: count for bound, count in zip(BATCH_BUCKETS, steps.sizes, strict=True) if count}
    assert found == {1: 1, 3: 2, 10: 1, 512: 1}, "what is beyond the last bucket counts in it"


def test_each_rank_tells_of_some_steps_and_odd_pages_are_not_read():
    page = exposition(4) + exposition(2, 4, 4).replace(b'engine="0"', b'engine="1"')
    sums = read_sums(page)
    assert (sums.steps, sums.batch, sums.active) == (4, 14, 40)
    assert sum(read_steps(page, sums).sizes) == 4
    assert read_steps(b"", sums) is None
    lines = page.splitlines(keepends=True)
    assert read_steps(b"".join(line for line in lines if b'le="8.0"' not in line), sums) is None
    name = METRIC_BATCH_SIZE.encode()
    assert read_steps(page + name + b'_bucket{le="1.0"} NaN\n', sums) is None


def counts(tokens, chosen, shape=(2, 8)):
    one = np.zeros(shape, dtype=np.uint16)
    one[:, chosen] = tokens
    return ExpertCounts(one, len(chosen), tokens, True)


def steps(n, active, size=4):
    sizes = [0.0] * len(BATCH_BUCKETS)
    sizes[BATCH_BUCKETS.index(size)] = float(n)
    return Batches(active * n, tuple(sizes), float(size * n))


def savings(kinds=((0, 1), (2, 3)), tokens=1000, requests=64):
    """Routers' knowledge of two kinds, of which two of each finished together: a group of requests has both alike."""
    made = Savings()
    for number in range(requests):
        made.finished(counts(tokens, list(kinds[number % len(kinds)])), 0.0)
    return made


def test_drafts_are_no_harm_and_what_they_cost_is_told():
    """A request of either kind uses one of its two experts at random, so that three tokens use more of them than one."""
    rng = np.random.default_rng(0)
    made, shares = Savings(), []
    for number in range(64):
        one = np.zeros((2, 8), dtype=np.uint16)
        first = int(rng.integers(400, 600))
        kind = 2 * (number % 2)
        one[:, kind : kind + 2] = first, 1000 - first
        shares.append(one[0] / 1000)
        made.finished(ExpertCounts(one, 1, 1000, True), 0.0)

    def random(fed):
        unused = np.mean([(1 - share) ** fed for share in shares], axis=0)
        return float(8 - (unused**4).sum())

    for turn in range(8):
        told = steps(100 * turn, random(3))
        made.observe("d0", told._replace(fed=3 * told.requests), 0.0)
    latest = update(made)
    assert abs(latest.share) < 0.01
    assert latest.drafts == pytest.approx(random(3) / random(1) - 1, rel=0.05)
    assert latest.drafts > 0.2
    made.follow("another", 2)
    for turn in range(8):
        made.observe("d0", steps(100 * turn, random(1)), 0.0)
    assert update(made).drafts == 0.0


def test_tokens_fed_are_read_where_they_are_told():
    page = exposition(4, 4)
    assert read_sums(page).fed == 8
    told = page + b'# TYPE eldr_engine_fed_tokens counter\neldr_engine_fed_tokens_total{engine="0"} 19.0\n'
    assert read_sums(told).fed == 19
    assert read_steps(told, read_sums(told)).fed == 19
    assert window(read_sums(exposition(4)), read_sums(told), 1).fed == 15
    assert read_sums(told + b'eldr_engine_fed_tokens_total{engine="1"} NaN\n') is None


def run(made, now=0.0):
    """Let an engine run in eight looks."""
    for turn in range(8):
        made.observe("d0", steps(100 * turn, 2.0), now)


def update(made, now=0.0):
    made.latest = made.prepare(now)()
    return made.latest


def test_what_two_kinds_apart_save():
    made = savings()
    run(made)
    for turn in range(8):
        made.observe("d1", steps(50 * turn, 2.0), 0.0)
    # half of all tokens use each pair: random batches of four use all but (1/2)^4 of both
    expected = 2 * 2 * (1 - 0.5**4)
    latest = update(made)
    assert latest.share == pytest.approx(1 - 2.0 / expected)
    assert (latest.steps, latest.batch, latest.error) == (1050, 4.0, pytest.approx(0.0, abs=1e-9))


def test_an_engine_that_begins_anew_and_one_that_is_gone_count_no_steps_twice():
    made = savings()
    for total in (0, 100, 200, 30, 90, 150, 210, 300, 360):
        made.observe("d0", steps(total, 2.0), 0.0)
    assert update(made).steps == 200 + 330
    made.retain(["d1"])
    made.observe("d0", steps(9999, 2.0), 0.0)
    assert update(made).steps == 200 + 330


def test_old_windows_and_requests_are_forgotten_and_too_little_is_not_told():
    made = savings()
    run(made)
    assert update(made, 300.0) is not None
    assert update(made, 301.0) is None
    few = savings(requests=63)
    run(few)
    assert update(few) is None


def test_what_another_placement_saved_is_not_told_of_this_one():
    made = savings()
    made.follow("JSQ", 1)
    run(made)
    assert update(made) is not None
    made.follow("JSQ", 1)
    assert made.latest is not None
    made.follow("MarginalUnion", 1)
    assert made.latest is None
    assert update(made) is None
    for turn in range(8, 16):
        made.observe("d0", steps(100 * turn, 1.0), 0.0)
    assert update(made).steps == 700, "from the first look after the change"


def test_where_few_requests_finish_older_ones_tell_of_the_mix():
    made = Savings()
    for number in range(70):
        made.finished(counts(100, [0, 1] if number < 6 else [2, 3]), 10.0 * number)
    now = 3590.0
    run(made, now)
    # of the newest 64, all of the second kind
    assert update(made, now).share == pytest.approx(0.0)
    assert update(made, 3660.0).share == pytest.approx(0.0)
    assert update(made, 3661.0) is None, "one of them is older than an hour"


def test_another_model_begins_anew():
    made = savings()
    run(made)
    made.finished(counts(1000, [0, 1], shape=(4, 8)), 1.0)
    assert update(made, 1.0) is None


def test_traffic_is_counted_for_one_set():
    traffic = Traffic()
    assert traffic.state() is None
    traffic.follow(3, "sha256:a", 2)
    for scores, slot in (
        ([0.5, 0.95], 1),
        ([0.5, 0.95], 0),
        ([0.9, 0.85], 1),
        ([1.0, 0.2], -1),
        ([-0.1, -0.2], 0),
    ):
        traffic.count(scores, slot, 0.1, [3, 1, 5])
    traffic.count([0.5], 0, 0.1, [9])  # met another set
    state = traffic.state()
    assert (state["epoch"], state["digest"], state["requests"]) == (3, "sha256:a", 5)
    assert {n: count for n, count in enumerate(state["similarity"]) if count} == {0: 1, 90: 1, 95: 2, 99: 1}
    assert len(state["similarity"]) == SIMILARITY_BINS
    assert (state["clusters"], state["outside_band"]) == ([3, 2], 2)
    assert (state["busiest_in_flight"], state["mean_in_flight"]) == (5 * 5, 5 * 3.0)
    traffic.follow(3, "sha256:a", 2)
    assert traffic.requests == 5
    traffic.follow(4, "sha256:a", 2)
    assert [traffic.state()[name] for name in ("requests", "busiest_in_flight", "mean_in_flight")] == [
        0,
        0,
        0,
    ]
    traffic.follow(5, "", 0)
    assert traffic.state() is None
