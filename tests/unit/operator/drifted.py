"""A deployment that lives through windows of requests, one after the other."""

import random
from dataclasses import replace
from datetime import timedelta

from eldr.contract import POLICY_ELDR, SIMILARITY_BINS
from eldr_operator.drift.counts import Baseline, Counts, Saving
from eldr_operator.drift.decide import decide
from eldr_operator.drift.observation import Observation, SetReport
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import State
from eldr_operator.drift.windows import Span, Window
from tests.unit.operator.builders import NOW

SHARES = (0.25, 0.25, 0.25, 0.25)
OTHER = (0.7, 0.1, 0.1, 0.1)
GOOD = Saving(0.1, 0.004, 5000)
POOR = Saving(0.005, 0.002, 5000)
BAD = Saving(-0.05, 0.004, 5000)


def counts(n, shares, rng):
    clusters = [0] * len(shares)
    for slot in rng.choices(range(len(shares)), shares, k=n):
        clusters[slot] += 1
    similarity = [0] * SIMILARITY_BINS
    for _ in range(n):
        similarity[min(99, max(0, int(rng.gauss(80, 5))))] += 1
    return Counts(tuple(similarity), tuple(clusters), n)


class Life:
    """Feeds windows to the decision, and checks of every one that looking twice changes nothing."""

    def __init__(self, *, spec=None, digest="a", policy=POLICY_ELDR, **seen):
        self.rng = random.Random(1)
        self.now, self.spec, self.state = NOW, DriftSpec.model_validate(spec or {}), State()
        self.baseline = Baseline(counts(400, SHARES, self.rng), 0.1, 0.08, 0.12)
        defaults = {"samples": 100_000, "activated": NOW - timedelta(hours=1), "saving": GOOD}
        self.seen = Observation(digest=digest, policy=policy, baseline=self.baseline, **defaults | seen)
        self.spans, self.verdict = [], None
        self.look()

    def look(self, minutes=0.0, **changes):
        """Look without a new window; returns the verdict."""
        self.now += timedelta(minutes=minutes)
        self.seen = replace(self.seen, **changes)
        before = self.state
        self.state, self.verdict = decide(before, self.spec, self.seen, self.now)
        again = decide(self.state, self.spec, self.seen, self.now)
        assert again == (self.state, self.verdict)
        read = State.model_validate(self.state.to_json())
        assert read == self.state
        # killed before the state was persisted: the same look at the same state says the same
        assert decide(before, self.spec, self.seen, self.now) == again
        return self.verdict

    def told(self, fit, *, harms=True, minutes=0.0):
        """Let a fit that finishes say whether the active set harms; returns the verdict."""
        return self.look(
            minutes, report=SetReport(fit, harms=harms, finished=self.now + timedelta(minutes=minutes))
        )

    def switch(self, mode):
        """Change ``spec.refit.drift.mode``, and look once more."""
        self.spec = DriftSpec(mode=mode)
        return self.look()

    def window(self, shares=SHARES, times=1, n=500, minutes=5.0, **changes):
        """Let windows pass; returns the last verdict."""
        for _ in range(times):
            since = self.now
            self.now += timedelta(minutes=minutes)
            self.spans.append(Span(since, self.now, counts(n, shares, self.rng)))
            window = Window(self.seen.digest, tuple(self.spans))
            self.look(window=window, **changes)
        return self.verdict

    def activate(self, digest, **changes):
        """Let another set serve, of which the windows begin anew."""
        self.spans = []
        return self.look(digest=digest, activated=self.now - timedelta(minutes=30), window=None, **changes)
