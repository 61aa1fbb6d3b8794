"""Values that nobody means, in worker files: every one is refused by name, none ends the router's source."""

import re

import pytest

from eldr.shown import shown
from eldr_router.placement.table import RoutingError
from eldr_router.sources.file import parse_workers


@pytest.mark.parametrize("field", ["tau", "max_in_flight", "max_load"])
@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "0x" + "f" * 5000, ".nan", "-.inf", "true", "'1'"])
def test_no_number_of_a_worker_file_is_taken_that_is_none(field, text):
    with pytest.raises(RoutingError, match=rf"{field}|not YAML") as refused:
        parse_workers(f"{field}: {text}")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        "model: 2026-99-99", "tau: !!int x", "tau: !!float x", "tau: !!bool maybe", "model: !!timestamp x",
        "model: 0001-01-01T00:00:00+99:00", "tau: " + "[" * 5000, "? [1, 2]\n: 3", "? {a: 1}\n: 3", "model: !!binary \u00e9",
    ],
)  # fmt: skip
def test_whatever_cannot_be_read_is_said_to_be_no_yaml(text):
    with pytest.raises(RoutingError, match=r"not YAML|xpected `") as refused:
        parse_workers(text)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("key", ["9" * 400, "x" * 5000])
def test_unknown_fields_are_named_in_short(key):
    with pytest.raises(RoutingError, match=r"unknown field|Expected `str`") as refused:
        parse_workers(f"? {key}\n: 1")
    assert len(str(refused.value)) < 400


def test_values_are_shown_in_short():
    assert [shown(value) for value in (3, "x", [1])] == ["3", "'x'", "[1]"]
    assert re.fullmatch(r"1{10,}\.\.\.1{10,}", shown(int("1" * 400)))
    assert shown(10**5000) == "a whole number of 16610 bits"
    assert shown([-(10**5000)]) == "[a whole number of 16610 bits]"
    assert len(shown([["x" * 1000] * 1000] * 1000)) < 1000
