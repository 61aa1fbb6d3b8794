"""Long contexts before simulated engines: what is sent, what is proven, what is told. Real ones take half an hour."""

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest

from eldr_bench.proof import Unproven
from eldr_lab.contexts import page
from eldr_lab.contexts.__main__ import POLICIES, WARM, Policy, measured, run
from eldr_lab.contexts.traffic import LONG, SHORT, Request, Served, draw, numbered
from eldr_tiny_moe import corpus
from tests.support.processes import engine
from tests.vllm.engines import BLOCK, NAME, Setup, metric

BLOCKS = 24


@dataclass
class Simulated:
    """What the study needs of an engine."""

    name: str
    url: str
    setup: Setup

    def metric(self, name, **labels):
        return metric(self.url, name, **labels)


@pytest.fixture(scope="module")
def engines():
    """A prefill engine and two decode engines with room for a long request and few short ones each."""
    with contextlib.ExitStack() as stack:
        made = []
        for role, name in (("prefill", "p0"), ("decode", "d0"), ("decode", "d1")):
            blocks = 4096 if role == "prefill" else BLOCKS
            options = (
                "--kv-blocks",
                str(blocks),
                "--block-size",
                str(BLOCK),
                "--max-model-len",
                str(BLOCKS * BLOCK),
            )
            server = stack.enter_context(engine(role, *options, model=NAME))
            made.append(Simulated(name, server.url, Setup(role=role, blocks=blocks)))
        yield made


def requests(n=12, every=4):
    """Requests that come at once, every fourth of them a long one."""
    return [
        Request(0.0, numbered([7] * (500 if not at % every else 40), 0, 0, at), 120, not at % every)
        for at in range(n)
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_answers_all_and_proves_its_policy(engines, tmp_path, name):
    policy = POLICIES[name]
    asked = [
        one._replace(prompt=numbered(one.prompt, 1, list(POLICIES).index(name), at))
        for at, one in enumerate(requests())
    ]
    served, _ = run(policy, asked, engines, tmp_path)
    assert len(served) == len(asked)
    assert all(0 < one.first <= one.last for one in served)
    if policy.knows:
        assert any(one.refusals for one in served), "three long ones do not fit on two engines"
        assert all(one.last >= 1 for one in served if one.refusals), "who was refused waited"
    else:
        assert not any(one.refusals for one in served)


def test_a_router_that_does_other_than_its_row_names_is_unproven(engines, tmp_path, monkeypatch):
    monkeypatch.setattr("eldr_lab.contexts.unaware.__file__", "/dev/null/none")
    with pytest.raises(AssertionError, match="exited"):
        run(Policy("JSQ", knows=False), requests(1), engines, tmp_path / "a")
    aware = tmp_path / "aware.py"
    aware.write_text("import sys\nfrom eldr.cli import main\nmain(sys.argv[2:])\n")
    monkeypatch.setattr("eldr_lab.contexts.unaware.__file__", str(aware))
    late = [one._replace(at=5.0) for one in requests(1)]  # by then it has read the engines' metrics
    with pytest.raises(Unproven, match="knows KV caches"):
        run(Policy("JSQ", knows=False), late, engines, tmp_path / "b")


def test_an_answer_that_is_none_ends_the_study(engines, tmp_path):
    refused = [requests(1)[0]._replace(tokens=5000)]
    with pytest.raises(Unproven, match="answered by 400"):
        run(Policy("JSQ", knows=True), refused, engines, tmp_path)


def test_draws_are_as_asked():
    texts = corpus.load()

    def encode(text):
        return [ord(letter) % 200 for letter in text]

    found = draw(
        corpus.Prompts(texts), ["numbers", "json"], encode, rate=20.0, share=0.1, seconds=30.0, seed=1
    )
    assert len(found) == pytest.approx(600, rel=0.15)
    assert np.mean([one.is_long for one in found]) == pytest.approx(0.1, abs=0.04)
    lengths = {
        long: np.median([len(one.prompt) for one in found if one.is_long == long]) for long in (True, False)
    }
    assert lengths == {True: pytest.approx(LONG, rel=0.1), False: pytest.approx(SHORT, rel=0.05)}
    assert [one.at for one in found] == sorted(one.at for one in found)


def test_a_numbered_prompt_is_as_long_and_begins_like_no_other():
    heads = {
        tuple(numbered([1] * 40, turn, which, at)[:8])
        for turn in range(3)
        for which in range(4)
        for at in range(300)
    }
    assert len(heads) == 3 * 4 * 300
    assert len(numbered([1] * 40, 1, 2, 3)) == 40


def test_quantities_are_those_of_requests_after_the_warm_up():
    asked = [Request(0.0, [1], 11, is_long=False)] + [
        Request(WARM + 1, [1], 11, is_long=at == 3) for at in range(4)
    ]
    served = [Served(9.0, 90.0, 1)] + [
        Served(0.1 * (at + 1), 2.0 + 0.1 * (at + 1), int(at == 3)) for at in range(4)
    ]
    found = measured(asked, served, preemptions=1)
    assert found["preemptions"] == 200
    assert found["refused"] == 250
    assert found["tpot_p50"] == found["tpot_mean"] == pytest.approx(0.2)
    assert found["short_p50"] == pytest.approx(0.2)
    assert found["long_p99"] == pytest.approx(0.4)
    assert found["latency_p50"] == pytest.approx(2.25)


def test_the_page_pairs_rounds():
    quantities = (
        "preemptions",
        "refused",
        "tpot_mean",
        "tpot_p50",
        "tpot_p99",
        "short_p50",
        "short_p99",
        "long_p50",
        "long_p99",
        "latency_p50",
        "latency_p99",
    )
    runs = [
        {
            name: dict.fromkeys(quantities, (1.0 + turn) * (1.0 if name != "default" else 0.5))
            for name in POLICIES
        }
        for turn in range(3)
    ]
    about = {
        "date": "2026-01-01",
        "commit": "abc",
        "machine": "m",
        "share": 0.1,
        "rate": 3.0,
        "blocks": 96,
        "seconds": 40.0,
        "seeds": [1, 2, 3],
    }
    text = page.page({**about, "rounds": runs})
    assert "| default | -1.0 ±1.2 | -50.0 ±0.0 |" in text
    assert "| JSQ | +0.0 ±0.0 | +0.0 ±0.0 |" in text
    assert "3 rounds of 40 s" in text
    assert "10 % of about" in text
