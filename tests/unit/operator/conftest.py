from datetime import timedelta

import pytest

from eldr_operator.fits import planner


@pytest.fixture
def on_the_minute(monkeypatch):
    """Let fits by schedule begin with their minute."""
    monkeypatch.setattr(planner, "MOST_DELAY", timedelta(0))
