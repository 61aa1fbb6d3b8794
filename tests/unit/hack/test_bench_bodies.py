"""The benchmark's bodies are what their rows name."""

import pytest

from eldr_bench.bodies import CASES


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_body_is_taken_or_refused_as_its_row_says(case):
    assert case.decide(case.body()) is case.taken
