"""A tiny study through everything: what is tested is the machinery, and what holds whatever is drawn."""

import json
from pathlib import Path

import numpy as np
import pytest

from eldr_lab.evidence import balance, balance_results, balance_rows, balance_study
from eldr_lab.evidence.balance_results import EXACT, NONE, OURS, VLLM
from eldr_lab.evidence.balance_study import (
    BATCHES,
    EAGER,
    LEAST,
    MODELS,
    MOST,
    RATIOS,
    SMOKE,
    Size,
    as_printed,
    study,
    write,
)
from tests.support.metro import Placement

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture(scope="module")
def found():
    return json.loads(json.dumps(study(SMOKE, (0, 1))))


def test_every_cell_is_there_and_choices_are_in_order(found):
    cells = {(one["model"], one["batch"], one["ratio"], one["seed"]): one for one in found["cells"]}
    assert len(cells) == len(MODELS) * len(BATCHES) * len(RATIOS) * 2
    for (name, batch, ratio, _), one in cells.items():
        fullest = one["fullest"]
        for placing in ("tokens", "activations"):
            assert fullest[f"exact, {placing}"] <= fullest[f"greedy, {placing}"] + 1e-9
            assert fullest[f"exact, {placing}"] <= fullest[f"tokens, {placing}"]
            mean, largest = one["above"][f"greedy, {placing}"]
            assert 1 <= mean <= largest, (name, batch, ratio)
        assert fullest["exact, activations"] <= fullest["none, activations"]


def test_a_layout_for_all_kinds_gains_less_than_one_for_an_engines_own(found):
    every = [one["fullest"] for one in found["layouts"]]
    gain = lambda layout: np.mean([1 - one[layout] / one["in order"] for one in every])  # noqa: E731
    assert gain("activations") > max(0.0, gain("alike"))
    assert gain("dealt") > 0


def test_the_section_has_its_tables_and_every_number_of_the_paper_a_row(found):
    text = balance.text(found)
    for title in (
        "What it costs",
        "Expect a loss",
        "ELDR across engines, METRO inside",
        "Without replicas",
        "What ranks tell each other",
    ):
        assert f"**{title}" in text
    assert "nan" not in text
    assert "captured activations" in text
    rows = list(balance_rows.rows(found))
    numbers = " ".join(one.published for one in rows)
    for number in (
        "+10.9",
        "-42.3",
        "+30.0",
        "+14.0",
        "-21.8",
        "-1.9",
        "-5.0 .. -4.3",
        "+98.0 .. +311.0",
    ):
        assert number in numbers
    assert all(one.why or one.verdict.value == "reproduced" for one in rows)


def test_an_exchange_is_paid_for_whole_and_vllms_choice_is_not(found):
    micros = [round(1e6 * seconds) for seconds in (LEAST, MOST, EAGER)]
    assert micros == [25, 55, 76]
    fullest = balance_results.Fullest(found)
    name, batch, ratio = "qwen3-235b", 16, 1.25
    experts = fullest.values(name, batch, ratio, EXACT)
    law = MODELS[name].law
    assert fullest.times(name, batch, ratio, EXACT) == pytest.approx(
        [law.seconds(batch, one) + 94 * LEAST for one in experts]
    )
    dear = fullest.slower(name, batch, ratio, EXACT, NONE, MOST).mean
    assert dear > fullest.slower(name, batch, ratio, EXACT, NONE).mean
    experts = fullest.values(name, batch, ratio, VLLM)
    assert fullest.times(name, batch, ratio, VLLM) == pytest.approx(
        [law.seconds(batch, one) for one in experts]
    )
    saved = fullest.saved(name, batch, ratio, EXACT, VLLM).mean
    ours = np.mean(fullest.values(name, batch, ratio, EXACT))
    assert saved == pytest.approx(13.8 * (np.mean(experts) - ours))


def test_served_is_the_largest_ratio_of_batches_within_a_time():
    """Times of a choice that costs nothing and halves the experts of another one."""
    cells = [
        {"model": "qwen3-235b", "batch": batch, "ratio": 1.5, "seed": 0,
         "fullest": {VLLM: float(batch), NONE: batch / 2}}
        for batch in BATCHES
    ]  # fmt: skip
    fullest = balance_results.Fullest({"seeds": [0], "cells": cells})
    more = fullest.served("qwen3-235b", 1.5, NONE, VLLM).mean
    assert 95 < more < 101


def test_the_printed_order_takes_experts_as_they_come():
    placement = Placement([0, 1, 1, 2], 3, 2)
    active = np.array([True, True, True])
    assert as_printed(active, placement, np.array([0, 1, 2])) == 2
    assert as_printed(active, placement, np.array([1, 0, 2])) == 2
    assert (
        as_printed(active & [True, True, False], placement, np.array([1, 0, 2])) == 2
    )  # 1 takes rank 0 before 0
    assert as_printed(active & [True, True, False], placement, np.array([0, 1, 2])) == 1


def test_a_study_that_was_not_run_is_told(tmp_path):
    assert balance_results.read(tmp_path / "none.json") is None
    assert "`make -C hack/lab bench-balance` has not been run" in balance.text(None)
    write(tmp_path / "some.json", Size(1, 1, 120, 0.2, 4), (0,))
    assert balance_results.read(tmp_path / "some.json")["seeds"] == [0]


def test_the_page_holds_what_the_figures_give():
    page = (DOCS / "evidence" / "ranks.md").read_text()
    figures = balance_results.read()
    assert balance.text(figures).strip() in page
    assert balance.take(figures) in page


def test_where_a_loss_is_to_be_expected_users_are_told():
    """The pages that they read before they switch it on; as long as no setting wins at either end of the range."""
    fullest = balance_results.Fullest(balance_results.read())
    every = [
        fullest.slower(name, batch, ratio, OURS, NONE, MOST).high < 0
        for name in MODELS
        for batch in BATCHES
        for ratio in fullest.ratios
    ]
    assert not any(every)
    root = DOCS.parent
    for page in (
        "README.md",
        "docs/guides/vllm.md",
        "docs/guides/expert-parallel.md",
        "docs/reference/engine-plugin.md",
        "crds/eldr.dev_eldrdeployments.yaml",
    ):
        text = " ".join((root / page).read_text().lower().split())
        assert "expect a loss" in text, page
        if page in {"docs/guides/expert-parallel.md", "docs/reference/engine-plugin.md"}:
            assert f"{1e6 * LEAST:.0f} to {1e6 * MOST:.0f} us" in text, page


def test_choices_that_fill_ranks_alike_are_unproven(monkeypatch):
    place = balance_study.Replicas
    monkeypatch.setattr(balance_study, "Replicas", lambda **told: place(ratio=1.0, placing="tokens"))
    with pytest.raises(SystemExit, match="vllm has as much as none on the fullest rank under JSQ"):
        balance_study.pools(SMOKE, (0,))
