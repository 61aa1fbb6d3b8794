"""How far the last windows are from what was expected, and what they teach about traffic that stays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from eldr_operator.drift import score
from eldr_operator.drift.counts import Baseline
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.score import ALPHA, SIGNALS, Score, compare
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import Known, Shown, Spread, State
from eldr_operator.drift.windows import Window

Z = NormalDist().inv_cdf(1.0 - ALPHA / SIGNALS)
"""Standard errors beyond which a measured saving is not chance."""
RAISE = 1.0
"""Score of consecutive windows together from which on traffic has changed."""
LEANS = 0.3
"""Score that each of them must have alone: one burst is no change."""
CLEAR = 0.5
"""Score below which traffic is what was expected."""
HELD_OUT = 1 / 2
"""Share of the records of a session that a fit holds out for its baseline, at most: of the newer half every second one."""
ALLOWANCE = 2.0
"""On what was learned of bursts: they have heavier tails than the law of the test, and differ between day and night."""
LEARNS = 24
"""Windows after an activation that join the baseline, each once those after it were calm too."""
JOINS = 0.3
"""Share of requests in other groups than the fit's own baseline has, from which on a window does not join it, however calm it seems:
little is known of bursts at first, and a change that comes then must not become what is expected."""
NEARER = 0.5
"""Share of the requests in other groups than the set's own baseline has that may be in other groups than before it: traffic that
goes on to something else than both is no return."""
_MEMORY = 48.0
_OUTLIER = 3.0


@dataclass(frozen=True, slots=True)
class Scores:
    """What the last windows say.

    Parameters
    ----------
    latest, together : Score or None
        Of the last window, and of the last ones together.
    against_change, against_before : Score or None
        Of these against the first ones of the new regime, and against traffic before the change that the set was fitted for.
    """

    latest: Score | None = None
    together: Score | None = None
    against_change: Score | None = None
    against_before: Score | None = None

    @property
    def differs(self) -> bool:
        """Whether the last window leans away from what was expected."""
        return self.latest is not None and self.latest.value >= LEANS

    @property
    def total(self) -> float:
        """Score of the last windows together; 0 while they are too few."""
        return 0.0 if self.together is None else self.together.value

    @property
    def calm(self) -> bool:
        """Whether they and the last one alone are what was expected."""
        both = self.together, self.latest
        return all(score is not None and score.value < CLEAR for score in both)

    @property
    def returned(self) -> bool:
        """Whether the last windows are what came before the set's own traffic, and much less what the set was fitted for."""
        now, before = self.together, self.against_before
        if now is None or before is None:
            return False
        return before.value < CLEAR and before.moved <= now.moved * NEARER


def weigh(state: State, spec: DriftSpec, seen: Observation, window: Window) -> Scores:
    """Hold the last windows against the baseline, and against the first ones of a new regime."""
    if seen.baseline is None:
        return Scores()
    expected, factors, number = seen.baseline.counts, _factors(state.spread), spec.consecutive_windows
    thinning, known = _thinning(seen), state.known.groups
    latest = compare(expected, window.latest.counts, factors, thinning, known)
    span = window.together(number)
    if latest is None or span is None:
        return Scores(latest)
    together = compare(expected, span.counts, factors, thinning, known)
    changed = state.drift.changed
    first = None if changed is None else window.first_since(changed, number)
    against = None if first is None else score.compare_spans(expected, first.counts, span.counts, factors)
    before = seen.baseline.before
    returned = None if before is None else compare(before, span.counts, factors, thinning)
    return Scores(latest, together, against, returned)


def _thinning(seen: Observation) -> float:
    return min(1.0, max(0.0, seen.sample_rate)) * HELD_OUT


def _factors(spread: Spread) -> tuple[float, float]:
    return max(1.0, ALLOWANCE * spread.similarity), max(1.0, ALLOWANCE * spread.clusters)


def shown(scores: Scores, spec: DriftSpec, window: Window) -> Shown | None:
    """Return what to show of them."""
    scored, span = scores.together, window.together(spec.consecutive_windows)
    if scored is None or span is None:
        scored, span = scores.latest, window.latest
    if scored is None:
        return None
    similarity, clusters = round(scored.similarity.moved, 3), round(scored.clusters.moved, 3)
    value, requests = round(scored.value, 3), span.counts.requests
    return Shown(value=value, similarity=similarity, clusters=clusters, requests=requests)


def learn_reference(
    state: State, spec: DriftSpec, scores: Scores, seen: Observation, window: Window
) -> Known:
    """Let the window before the last ones join the baseline, once it and they were calm: the beginning of a change is not."""
    known, index = state.known, -spec.consecutive_windows - 1
    if seen.baseline is None or not scores.calm or known.windows >= LEARNS or len(window.spans) < -index:
        return known
    expected, counts = seen.baseline.counts, window.spans[index].counts
    factors, thinning = _factors(state.spread), _thinning(seen)
    alone = compare(expected, counts, factors, thinning, known.groups)
    fitted = compare(expected, counts, factors, thinning)
    if alone is None or alone.value >= CLEAR or fitted is None or fitted.moved >= JOINS:
        return known
    similarity, clusters = score.in_groups(expected, counts, known.groups)
    return Known(windows=known.windows + 1, similarity=similarity, clusters=clusters)


def learn_spread(
    state: State, spec: DriftSpec, scores: Scores, baseline: Baseline | None, window: Window
) -> Spread:
    """Learn from spans of a mix that stays; a span that stands out counts as much as an outlier may.

    Spans that are not what was expected may differ because the mix changes: from them only smaller spreads are learned.
    """
    spread, number = state.spread, spec.consecutive_windows
    together, earlier = window.together(number), window.earlier(number)
    if baseline is None or together is None or earlier is None or scores.together is None:
        return spread
    if state.drift.phase != "Quiet" or scores.total >= RAISE:
        return spread
    dispersions = score.pair_dispersion(baseline.counts, earlier.counts, together.counts)
    gain = 1.0 / (spread.weight + 1.0)
    most = _OUTLIER if scores.calm else 1.0
    values = [
        old if new is None else old + gain * (min(new, most * max(1.0, old)) - old)
        for old, new in zip((spread.similarity, spread.clusters), dispersions, strict=True)
    ]
    similarity, clusters = (round(value, 4) for value in values)
    return Spread(similarity=similarity, clusters=clusters, weight=min(spread.weight + 1.0, _MEMORY))
