"""Budgets of packages: what counts as a token, and what the check refuses."""

from collections import Counter

import pytest

from tests.support.scripts import script


@pytest.fixture(scope="module")
def budget():
    return script("budget")


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ("x = 1\n", 3),
        ("# a comment\n\nx = 1  # another\n", 3),
        ('"""A docstring."""\n\ndef f():\n    """Another\n    one."""\n    return "no docstring"\n', 7),
        ("if x:\n    y = 1\n", 6),
        (f"x = '{'a' * 200}'\n", 2 + 40),
        ("x = f'{a + b} {f\"{c}\"}'\n", 3),
        (f"x = f'{{a}}{'b' * 200}'\n", 2 + 41),
    ],
)
def test_tokens_are_what_a_reader_reads(budget, source, tokens):
    assert budget.count(source) == tokens


def test_what_is_above_its_budget_is_named_with_the_remedy(budget):
    tokens = Counter({"eldr/fit": 120, "router/a": 50, "tests/unit": 300})
    assert list(budget.faults(tokens, {"eldr/fit": 120, "router/a": 50}, 2.0)) == []
    (above,) = budget.faults(tokens, {"eldr/fit": 100, "router/a": 50}, 2.0)
    assert above.startswith("eldr/fit: 120 tokens, 20 above its budget of 100: remove something")
    (new,) = budget.faults(tokens, {"router/a": 50}, 2.0)
    assert "no budget" in new
    (gone,) = budget.faults(tokens, {"eldr/fit": 120, "router/a": 50, "eldr/old": 1}, 2.0)
    assert gone.startswith("eldr/old: a budget without a package")
    (tests,) = budget.faults(tokens, {"eldr/fit": 120, "router/a": 50}, 1.75)
    assert tests.startswith("tests: 1.765 tokens")
