"""The page of `make -C hack/lab bench-policies` holds what comparisons found: traces, laws by policy, predictions."""

import json

import numpy as np
import pytest

from eldr.core.step_time import StepTime
from eldr.simulate.measures import Measures
from eldr_lab.steps import policies_page
from eldr_lab.steps.law import Law
from eldr_lab.steps.outcome import BLOCKS, Block
from eldr_lab.steps.pools import Found, Setting

TRACES = 2


def blocks(seconds):
    rng = np.random.default_rng(0)
    return [
        Block(seconds + rng.normal(0, 1e-4, 25), 100, 1200, 1200 * 30.0, 10.0) for _ in range(TRACES * BLOCKS)
    ]


def measures(tpot, active):
    values = dict.fromkeys(Measures.__dataclass_fields__, 1.0)
    values |= {"tpot_mean": tpot, "tpot_p50": tpot, "tpot_p99": tpot, "active_per_token": active}
    return Measures(**values)


def law(per_expert):
    interval = (0.9 * per_expert, 1.1 * per_expert)
    return Law((9e-3, per_expert, 4e-4), ((8e-3, 1e-2), interval, (3e-4, 5e-4)), 0.95, 0.8, 0.97, 1000, 3)


def found(*, holds):
    return Found(
        setting=Setting(4, 12, 200, holds=holds),
        parts={"JSQ": blocks(0.05), "MarginalUnion": blocks(0.045)},
        traces=TRACES,
        rate=17.5,
        law=law(9e-4),
        laws={"JSQ": law(9e-4), "MarginalUnion": law(9e-4)},
        learned={
            "JSQ": (StepTime(9e-3, 9.5e-4, 4e-4, 64), 1e-5),
            "MarginalUnion": (StepTime(9e-3, 2e-3, 4e-4, 64), 1e-5),
        },
        predicted={} if holds else {"JSQ": [measures(0.05, 30.0), measures(0.05, 32.0)], "MarginalUnion": [measures(0.04, 28.0)] * 2},
    )  # fmt: skip


@pytest.fixture
def results():
    pools = [policies_page.pool_json(found(holds=holds)) for holds in (False, True)]
    return json.loads(json.dumps({
        "date": "2026-11-22", "machine": "a CPU", "dtype": "float32", "kinds": ["french"], "prompts": 180, "slowness": [1.0, 1.1, 2.0],
        "pools": pools,
    }))  # fmt: skip


def test_the_page_says_what_was_found(results):
    text = policies_page.page(results)
    assert f"{BLOCKS} of each of {TRACES} traces" in text
    assert "| MarginalUnion | 30.0 (+0.0 %" in text
    assert "45.0" in text
    assert "(-10.0 %," in text
    assert "| JSQ | 31.0 (+3.3 %) | 30.0 | +0.0 % | +0.0 % |" in text, (
        "a prediction is the mean over the traces"
    )
    rows = [line for line in text.splitlines() if line.startswith("| 4 engines, 17.5 requests/s |")]
    assert [row.split("|")[-2].strip() for row in rows[-2:]] == ["agree", "**apart**"]


def test_the_picture_is_drawn(results, tmp_path, monkeypatch):
    monkeypatch.setattr(policies_page, "PICTURE", tmp_path / "policies.png")
    policies_page.draw(results)
    assert (tmp_path / "policies.png").stat().st_size > 1000
