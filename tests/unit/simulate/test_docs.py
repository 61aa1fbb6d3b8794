"""The reference names every option of the command and every figure of the report."""

import dataclasses

from eldr.simulate.cli import command
from eldr.simulate.measures import Measures
from tests.support.reference import undocumented


def test_every_option_and_figure_is_documented():
    figures = {field.name for field in dataclasses.fields(Measures)}
    by_ending = [f"_{name.rpartition('_')[2]}" for name in undocumented("simulate", figures, command)]
    assert undocumented("simulate", by_ending, command) == []
