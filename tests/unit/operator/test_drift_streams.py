"""Drift on captured activations: nothing where the mix stays, and soon where it changes. Thorough: make -C hack/lab bench-drift."""

import numpy as np
import pytest

from eldr_operator.drift.spec import DriftSpec
from tests.support.drifting import (
    BURSTS,
    DAY,
    SESSIONS,
    SINGLE,
    baseline,
    blend,
    even,
    kinds,
    stream,
    watch,
    world,
)

SPEC = DriftSpec()
WARM = 14
HOUR = 3600.0
KNOWN, NEW = ("en", "fr", "ru", "zh"), ("python", "manual", "legal", "changelog")


@pytest.fixture(scope="module")
def fitted():
    assert set(kinds()) == {*KNOWN, *NEW}
    return world(KNOWN, 4)


@pytest.mark.slow
@pytest.mark.parametrize("crowd", [SINGLE, SESSIONS, BURSTS], ids=["single", "sessions", "bursts"])
@pytest.mark.parametrize(("rate", "hours"), [(0.2, 24), (1.0, 24), (20.0, 24)])
@pytest.mark.parametrize("size", [150, 700])
def test_a_day_of_one_mix_raises_nothing(fitted, crowd, rate, hours, size):
    rng = np.random.default_rng([1, size])
    seconds = hours * HOUR
    requests = stream(
        fitted, lambda _: even(*KNOWN), rate=rate, seconds=seconds, crowd=crowd, rng=rng, start=DAY / 2
    )
    expected = baseline(fitted, even(*KNOWN), size=size, crowd=crowd, rng=rng)
    course = watch(fitted, requests, expected, SPEC, seconds=seconds, rng=rng, every=60)
    assert course.detected == ()
    assert len(course.scores) >= 20
    assert max(course.scores) < 1


MIXES = {
    "full": lambda part: even(*NEW) if part > 0 else even(*KNOWN),
    "half": lambda part: blend(even(*KNOWN), even(*NEW), 0.5 if part > 0 else 0.0),
    "new kind": lambda part: blend(even(*KNOWN), even("python"), 1 / 3 if part > 0 else 0.0),
    "slow": lambda part: blend(even(*KNOWN), even(*NEW), part),
}


@pytest.mark.parametrize("crowd", [SINGLE, SESSIONS], ids=["single", "sessions"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("change", "within"), [("full", 2000), ("half", 3000), ("new kind", 3000), ("slow", 6000)]
)
def test_a_change_is_found_within_so_many_requests(fitted, change, within, crowd, seed):
    rng = np.random.default_rng([2, seed])
    rate, begins = 2.0, WARM * SPEC.window_requests / 2.0
    ends = begins + 2 * HOUR
    mix = MIXES[change]
    requests = stream(
        fitted,
        lambda time: mix(min(1.0, max(0.0, time - begins) / HOUR)),
        rate=rate,
        seconds=ends,
        crowd=crowd,
        rng=rng,
        start=DAY / 4,
    )
    expected = baseline(fitted, even(*KNOWN), size=300, crowd=crowd, rng=rng)
    course = watch(fitted, requests, expected, SPEC, seconds=ends, rng=rng, after=begins)
    assert len(course.detected) == 1
    (at,) = course.detected
    assert at > begins
    assert ((requests.times > begins) & (requests.times <= at)).sum() <= within
