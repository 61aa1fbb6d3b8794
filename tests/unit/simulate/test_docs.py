"""The reference names every option of the command and every figure of the report."""

import dataclasses
from pathlib import Path

from eldr.simulate.cli import command
from eldr.simulate.measures import Measures

REFERENCE = (Path(__file__).parents[3] / "docs" / "reference" / "simulate.md").read_text()


def test_every_option_is_documented():
    missing = [
        option for parameter in command.params for option in parameter.opts if f"`{option}`" not in REFERENCE
    ]
    assert not missing


def test_every_figure_is_documented():
    named = [
        name
        for name in (field.name for field in dataclasses.fields(Measures))
        if name not in {"requests", "fullest_per_token"}
    ]
    missing = [
        name
        for name in named
        if f"`{name}`" not in REFERENCE and f"`_{name.split('_')[-1]}`" not in REFERENCE
    ]
    assert not missing
