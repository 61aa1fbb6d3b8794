"""What becomes of public recipes' arguments is what the page says."""

import re
from collections import Counter
from pathlib import Path

import pytest

from eldr_operator.validation.arguments import uncounted
from eldr_operator.validation.spec import problems
from tests.unit.operator.builders import make_vllm

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "recipes.md").read_text()
ROWS = re.findall(r"^\| `(\S+/\S+)` \| (?:`([^|]*)`)? \| ([^|]+) \|$", PAGE, re.MULTILINE)
TOTALS = {
    verdict: int(n) for verdict, n in re.findall(r"^\| (\w[\w ]+) \| .* \| (\d+) \|$", PAGE, re.MULTILINE)
}
MTP = {"mtp", "qwen3_next_mtp"}
TRIED = {
    r"Qwen/Qwen3-(?:\d|Coder|VL)": set(),
    r"Qwen/Qwen3-Next": MTP,
    r"deepseek-ai/DeepSeek-(?:R1|V3|V3\.1)$": MTP,
    r"moonshotai/Kimi-K2-": MTP,
    r"openai/gpt-oss": set(),
    r"google/gemma-4": set(),
    r"zai-org/GLM-4\.[5-7]$": MTP,
}
"""Families that ``tests/vllm`` runs on real engines, and with which methods of drafting in ``test_families.py``."""


def was_tried(model, text):
    methods = re.findall(r'(?:"method":"|speculative-config\.method )(\w+)', text)
    if "speculative-config" in text and not methods:
        return False  # a method of its own, by the draft's model
    return any(re.match(name, model, re.IGNORECASE) and tried >= {*methods} for name, tried in TRIED.items())


@pytest.mark.parametrize(("model", "text", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_a_recipe_is_judged_as_the_page_says(model, text, said):
    cr = make_vllm(engine={"args": text.split(), "image": "vllm/vllm-openai-rocm:v0.33.0"})
    if refused := problems(cr):
        assert {problem.value.split()[0] for problem in refused} == {
            *said.removeprefix("refused: ").split(", ")
        }
    elif reasons := uncounted(cr, "decode"):
        assert said.startswith("not counted: ")
        assert all(said.removeprefix("not counted: ") in reason for reason in reasons)
    else:
        assert said == ("counted" if was_tried(model, text) else "untested")


def test_the_page_adds_them_up():
    assert Counter(said.partition(":")[0] for _, _, said in ROWS) == TOTALS
    assert len({model for model, *_ in ROWS}) == 77
