"""Numbers that nobody means, in routing documents and worker files: every one is refused by name, none ends the router's source."""

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.shown import shown
from eldr_router.plan.table import Intent, RoutingError, parse
from eldr_router.sources.file import parse_workers

SETTINGS = [
    field.name
    for field in dataclasses.fields(Intent)
    if str(field.type).removesuffix(" | None") in ("int", "float")
]
SETTINGS.remove("epoch")  # a worker file has none
HUGE = st.one_of(
    st.integers(400, 6000).map(lambda digits: 10**digits),
    st.integers(400, 6000).map(lambda digits: -(10**digits)),
    st.integers(min_value=1 << 64),
    st.integers(max_value=-1),
)
NO_NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf, True, False, "1", "", "NaN", [1], {"a": 1}])
SET = {"fit": "f", "digest": "sha256:0", "k": 4, "shards": [{"name": "s", "sha256": "00"}]}
WHERE = {
    **{name: (lambda value, name=name: {name: value}) for name in (*SETTINGS, "epoch", "slots", "version")},
    "k": lambda value: {"active": {**SET, "k": value}},
    "domains[0].share": lambda value: {"domains": [{"name": "a", "share": value}]},
}


def test_the_fields_are_those_of_a_document():
    assert {
        "tau",
        "min_candidates",
        "max_load",
        "prior",
        "max_in_flight",
        "max_waiting",
        "max_wait_seconds",
        "sample_rate",
        "lease_seconds",
    } == set(SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("field", WHERE)
@given(value=HUGE | NO_NUMBERS)
def test_no_number_of_a_document_is_taken_that_is_none(field, value):
    with pytest.raises(RoutingError, match=re.escape(f"{field}: ")) as refused:
        parse({"version": 1, **WHERE[field](value)})
    assert f"got {shown(value)}" in str(refused.value)
    assert len(str(refused.value)) < 250


def written(field, text):
    if field == "slot":
        return f"decode: [{{name: d, url: 'http://h', slot: {text}}}]"
    return f"domains: [{{name: a, share: {text}}}]" if field == "share" else f"{field}: {text}"


@pytest.mark.parametrize("field", [*SETTINGS, "share", "slot"])
@pytest.mark.parametrize(
    "text",
    ["9" * 400, "-" + "9" * 400, "9" * 5000, "0x" + "f" * 5000, ".nan", ".inf", "-.inf", "true", "'1'", "'" + "9" * 400 + "'"],
)  # fmt: skip
def test_no_number_of_a_worker_file_is_taken_that_is_none(field, text):
    with pytest.raises(RoutingError, match=field) as refused:
        parse_workers(written(field, text))
    assert len(str(refused.value)) < 400


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "model: 2026-99-99", "tau: !!int x", "tau: !!float x", "tau: !!bool maybe", "model: !!timestamp x",
        "model: 0001-01-01T00:00:00+99:00", "tau: " + "[" * 5000, "? [1, 2]\n: 3", "? {a: 1}\n: 3", "model: !!binary \u00e9",
    ],
)  # fmt: skip
def test_whatever_cannot_be_read_is_said_to_be_no_yaml(text):
    with pytest.raises(RoutingError, match=r"not YAML|unknown field") as refused:
        parse_workers(text)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("key", ["9" * 400, "0x" + "f" * 5000, "x" * 5000])
def test_unknown_fields_are_named_in_short(key):
    with pytest.raises(RoutingError, match="unknown field") as refused:
        parse_workers(f"? {key}\n: 1")
    assert len(str(refused.value)) < 400


def test_values_are_shown_in_short():
    assert [shown(value) for value in (3, 0.5, True, "x", None, [1])] == [
        "3",
        "0.5",
        "True",
        "'x'",
        "None",
        "[1]",
    ]
    assert re.fullmatch(r"1{10,}\.\.\.1{10,}", shown(int("1" * 400)))
    assert shown(10**5000) == "a whole number of 16610 bits"
    assert shown([-(10**5000)]) == "[a whole number of 16610 bits]"
    assert len(shown([["x" * 1000] * 1000] * 1000)) < 1000
