"""Widened experts compute what they did."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2]))

from eldr_lab.steps.widen import MODEL, widen

WIDTH = 256


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wide") / "model"
    widen(MODEL, folder, WIDTH)
    return folder


def load(folder: Path) -> transformers.PreTrainedModel:
    # wider matrices are added up in another order: in float64 no choice hangs on that
    options = {"dtype": torch.float64, "experts_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def test_tokens_and_experts_stay_the_same(wide: Path) -> None:
    models = [load(MODEL), load(wide)]
    assert models[1].config.moe_intermediate_size == WIDTH
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        prompt = torch.randint(300, 4000, (1, 40), generator=generator)
        with torch.no_grad():
            said = [model.generate(prompt, max_new_tokens=24, do_sample=False) for model in models]
            routed = [model(said[0], output_router_logits=True) for model in models]
        assert torch.equal(*said)
        for ours, theirs in zip(*(answer.router_logits for answer in routed), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
            assert torch.equal(ours.topk(4).indices.sort().values, theirs.topk(4).indices.sort().values)


def test_the_same_arguments_give_the_same_bytes(wide: Path, tmp_path: Path) -> None:
    widen(MODEL, tmp_path / "again", WIDTH)
    for path in wide.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_a_width_that_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    trained = json.loads((MODEL / "config.json").read_text())["moe_intermediate_size"]
    for width in (trained, trained + 1):
        with pytest.raises(
            ValueError, match=f"width: expected a multiple of 32 above {trained}, got {width}"
        ):
            widen(MODEL, tmp_path / "none", width)
    assert not list(tmp_path.iterdir())
