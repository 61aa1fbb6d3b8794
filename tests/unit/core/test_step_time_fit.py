"""The step-time model is found in noisy telemetry, and the default where telemetry cannot tell."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.core.step_time_fit import Window, learn

DEFAULT = QWEN3_30B_MI300X


def pool(step_time, speeds, *, n=60, noise=0.01, seed=0, spread=(4, 40), extra=6.0):
    """Windows of a pool: batches that vary, and unions that follow them, give or take ``extra`` experts."""
    rng = np.random.default_rng(seed)
    found = {}
    for engine, speed in speeds.items():
        batch = rng.uniform(*spread, n)
        active = 128 * (1 - (1 - 8 / 128) ** (0.6 * batch)) + rng.normal(0, extra, n)
        active = active.clip(8, 128)
        seconds = [step_time.seconds(b, a) * speed for b, a in zip(batch, active, strict=True)] * (
            1 + noise * rng.normal(size=n)
        )
        found[engine] = [
            Window(float(t), float(a), float(b), 100) for t, a, b in zip(seconds, active, batch, strict=True)
        ]
    return found


FAST = StepTime(3e-3, 90e-6, 40e-6, 128)


def test_a_step_time_far_from_the_default_is_found():
    """Of engines one of which is slower: each has its own speed."""
    learned = learn(pool(FAST, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 2.0}), DEFAULT)
    assert learned.pool.per_expert == pytest.approx(90e-6, abs=3 * learned.expert_error)
    assert learned.pool.per_expert == pytest.approx(90e-6, rel=0.15)
    assert learned.windows == 240
    assert learned.noise == pytest.approx(0.01, rel=0.4)
    for batch, active in ((8, 40), (30, 80)):
        for engine, speed in (("a", 1.0), ("d", 2.0)):
            assert learned.step_times[engine].seconds(batch, active) == pytest.approx(
                speed * FAST.seconds(batch, active), rel=0.02
            )


def test_drafts_cost_what_their_tokens_cost_and_a_request_what_all_of_its_tokens_do():
    """Requests alone would not explain the times: how many drafts go with them changes from window to window."""
    rng = np.random.default_rng(1)
    windows = {}
    for engine, plain in pool(FAST, dict.fromkeys("abcd", 1.0), noise=0.0).items():
        fed = [one.batch * rng.uniform(1, 4) for one in plain]
        windows[engine] = [
            one._replace(seconds=FAST.seconds(tokens, one.active), fed=tokens)
            for one, tokens in zip(plain, fed, strict=True)
        ]
    learned = learn(windows, DEFAULT)
    both = [one for some in windows.values() for one in some]
    per_request = FAST.per_request * sum(one.fed for one in both) / sum(one.batch for one in both)
    assert learned.pool.per_request == pytest.approx(per_request, rel=0.02)
    assert learned.pool.per_expert == pytest.approx(FAST.per_expert, rel=0.05)
    assert learned.noise < 0.01
    untold = {name: [one._replace(fed=0.0) for one in some] for name, some in windows.items()}
    assert learn(untold, DEFAULT).noise > 3 * learned.noise


def test_experts_of_layers_that_draft_cost_as_much_as_others_and_belong_to_what_a_step_takes_anyway():
    rng = np.random.default_rng(2)
    windows = {
        engine: [
            one._replace(seconds=FAST.seconds(one.batch, one.active + drafted), drafted=drafted)
            for one, drafted in zip(plain, rng.uniform(5, 25, len(plain)), strict=True)
        ]
        for engine, plain in pool(FAST, dict.fromkeys("abcd", 1.0), noise=0.0).items()
    }
    learned = learn(windows, DEFAULT)
    assert learned.pool.per_expert == pytest.approx(FAST.per_expert, rel=0.05)
    assert learned.pool.seconds(20, 60) == pytest.approx(FAST.seconds(20, 60 + 15), rel=0.02)
    untold = {name: [one._replace(drafted=0.0) for one in some] for name, some in windows.items()}
    assert learn(untold, DEFAULT).noise > 3 * learned.noise


def test_experts_that_cost_nothing_are_found_out():
    flat = StepTime(12e-3, 0.0, 60e-6, 128)
    learned = learn(pool(flat, dict.fromkeys("abcd", 1.0), n=100), DEFAULT)
    assert learned.pool.per_expert * 60 < 0.06 * flat.seconds(20, 60)
    assert learned.pool.per_expert <= 3 * learned.expert_error + 1e-9


@pytest.mark.parametrize("step_time", [DEFAULT, StepTime(12e-3, 0.0, 60e-6, 128)])
@pytest.mark.parametrize(
    ("noise", "extra", "n"), [(0.03, 0.3, 30), (0.03, 0.3, 3), (0.03, 1.0, 3), (0.005, 0.3, 30)]
)
def test_noise_is_not_taken_for_knowledge(step_time, noise, extra, n):
    """Where batches hardly vary and experts follow them, a share of the step that is said to be known must be so."""
    active = 128 * (1 - (1 - 8 / 128) ** (0.6 * 20))
    wrong = silent = 0
    for seed in range(60):
        windows = pool(
            step_time, dict.fromkeys("abcd", 1.0), n=n, noise=noise, seed=seed, spread=(17, 23), extra=extra
        )
        learned = learn(windows, DEFAULT)
        step = learned.pool.seconds(20, active)
        share, error = learned.pool.per_expert * active / step, learned.expert_error * active / step
        wrong += (
            error <= 0.1
            and abs(share - step_time.per_expert * active / step_time.seconds(20, active)) > 3 * 0.1
        )
        silent += step_time is DEFAULT and learned.pool.per_expert == 0.0
    assert wrong == 0
    assert silent == 0, "placement by experts ends where they seem to cost nothing"


def with_contexts(windows, per_token, seed=0):
    """The same windows, of requests with contexts that vary, and what these cost."""
    rng = np.random.default_rng([seed, 1])
    found = {}
    for engine, some in windows.items():
        contexts = [one.batch * rng.uniform(1000, 20_000) for one in some]
        found[engine] = [
            one._replace(seconds=one.seconds + per_token * context, context=context)
            for one, context in zip(some, contexts, strict=True)
        ]
    return found


def test_without_a_term_that_explains_more_the_model_stays_as_it_is():
    for seed in range(20):
        plain = pool(FAST, dict.fromkeys("abcd", 1.0), n=20, noise=0.03, seed=seed)
        assert learn(with_contexts(plain, 0.0, seed), DEFAULT).pool == learn(plain, DEFAULT).pool
    some = with_contexts(plain, 30e-9)
    some["a"][0] = some["a"][0]._replace(context=0.0)
    assert learn(some, DEFAULT).pool.per_token == 0.0, "one engine does not tell"
    alike = {name: [one._replace(context=500 * one.batch) for one in each] for name, each in plain.items()}
    assert learn(alike, DEFAULT).pool == learn(plain, DEFAULT).pool, "requests tell as much"


def test_outliers_do_not_pull():
    windows = pool(FAST, dict.fromkeys("ab", 1.0), n=80)
    for at in range(0, 80, 9):
        windows["a"][at] = windows["a"][at]._replace(seconds=1.5)
    learned = learn(windows, DEFAULT)
    assert learned.step_times["a"].seconds(20, 60) == pytest.approx(FAST.seconds(20, 60), rel=0.03)


def test_without_variation_the_default_decides_the_proportions():
    same = [Window(2 * DEFAULT.seconds(16, 60), 60.0, 16.0, 100)] * 50
    learned = learn({"a": same}, DEFAULT)
    assert learned.step_times["a"].seconds(16, 60) == pytest.approx(2 * DEFAULT.seconds(16, 60), rel=0.01)
    assert learned.pool.per_expert == pytest.approx(2 * DEFAULT.per_expert, rel=0.02)
    assert learned.expert_error > 0.5 * DEFAULT.per_expert, "and it is known that nothing is known"


def test_nothing_heard_is_the_default():
    nothing = learn(
        {"a": [], "b": [Window(0.0, 1.0, 1.0, 5), Window(math.nan, 1.0, 1.0, 5), Window(1.0, 1.0, 1.0, 0)]},
        DEFAULT,
    )
    assert nothing.step_times == {"a": DEFAULT, "b": DEFAULT}
    assert nothing.windows == 0


def test_who_has_told_nothing_yet_is_taken_for_a_median_one():
    learned = learn(pool(FAST, {"a": 1.0, "b": 1.0}) | {"new": []}, DEFAULT)
    assert learned.step_times["new"] == learned.pool


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(
            st.builds(
                Window,
                st.floats(),
                st.floats() | st.floats(0, 128),
                st.floats() | st.floats(0, 1e6),
                st.integers(0, 10**6),
            ),
            max_size=8,
        ),
    )
)
def test_whatever_is_told_gives_a_step_time(windows):
    learned = learn(windows, DEFAULT)
    for step_time in (learned.pool, *learned.step_times.values()):
        for constant in (step_time.fixed, step_time.per_expert, step_time.per_request):
            assert math.isfinite(constant)
            assert constant >= 0
