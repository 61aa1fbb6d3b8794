"""Whatever happens to traffic, fits and the operator: budgets hold, no fit is ordered twice, and what is asked for is done once."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_operator.drift.next_fit import DAY
from eldr_operator.drift.observation import DriftFit
from eldr_operator.drift.state import State
from tests.unit.operator.drifted import BAD, GOOD, OTHER, POOR, SHARES, Life

THIRD = (0.1, 0.1, 0.1, 0.7)
EVENTS = st.lists(
    st.sampled_from(
        [
            *("known", "other", "third", "good", "poor", "bad"),
            *("finish", "accept", "kill", "policy", "pin", "mispin"),
        ]
    ),
    max_size=50,
)
PER_DAY, PAUSE = 3, timedelta(minutes=30)


class Cluster:
    """An operator that does what verdicts ask for, and may be killed before or after it does."""

    def __init__(self):
        spec = {"maxPerDay": PER_DAY, "coolDownMinutes": 30, "windowRequests": 200}
        self.life = Life(spec=spec, digest="s0", previous=None)
        self.fits, self.sets, self.rolled_back = {}, ["s0"], []
        self.baselines = 0

    def act(self):
        verdict, life = self.life.verdict, self.life
        assert not life.seen.pinned or (verdict.fit, verdict.roll_back) == (None, None)
        if verdict.fit is not None:
            number = verdict.fit.number
            assert number not in self.fits
            assert not any(fit.finished is None for fit in self.fits.values())
            recent = [fit for fit in self.fits.values() if life.now - fit.created < DAY]
            assert len(recent) < PER_DAY
            assert all(life.now - fit.finished >= PAUSE for fit in self.fits.values())
            assert verdict.fit.since <= life.now
            self.fits[number] = DriftFit(number, life.now)
            life.look(fits=tuple(self.fits.values()), busy=f"x-drift-{number}")
            assert life.verdict.fit is None
        if life.verdict.roll_back is not None:
            gone, to = life.verdict.roll_back.digest, life.verdict.roll_back.to
            assert gone == life.seen.digest
            assert gone not in self.rolled_back
            self.rolled_back.append(gone)
            life.activate(to, previous=None)
            assert life.verdict.roll_back is None

    def event(self, name):
        life = self.life
        if name in ("known", "other", "third"):
            life.window({"known": SHARES, "other": OTHER, "third": THIRD}[name], 3, n=2000, minutes=20)
        elif name in ("good", "poor", "bad"):
            life.look(saving={"good": GOOD, "poor": POOR, "bad": BAD}[name])
        elif name == "policy":
            life.look(policy=POLICY_ELDR if life.seen.policy == POLICY_MARGINAL else POLICY_MARGINAL)
        elif name == "pin":
            life.look(pinned=not life.seen.pinned, chosen=not life.seen.pinned)
        elif name == "mispin":
            life.look(pinned=True, chosen=False)
        elif name == "kill":
            life.state = State.model_validate_json(life.state.model_dump_json(by_alias=True))
            life.spans = []
            life.look(window=None)
        else:
            for number, fit in self.fits.items():
                if fit.finished is None:
                    self.fits[number] = DriftFit(number, fit.created, life.now)
            life.look(fits=tuple(self.fits.values()), busy=None)
            if name == "accept" and not life.seen.pinned:
                self.sets.append(f"s{len(self.sets)}")
                life.activate(self.sets[-1], previous=life.seen.digest)
        self.act()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_no_fit_twice_no_budget_broken_no_set_rolled_back_twice(events):
    cluster = Cluster()
    for event in events:
        cluster.event(event)
        verdict = cluster.life.verdict
        assert not (verdict.protective and cluster.life.seen.policy != POLICY_ELDR)
        assert not (verdict.protective and cluster.life.seen.chosen)
        assert len(cluster.life.state.model_dump_json()) < 4000
