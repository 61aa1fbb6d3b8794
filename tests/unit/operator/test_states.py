"""Each row of docs/development/states.md happens as it says, and no row is missing that the code knows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from eldr_operator.conditions import ROLLED_BACK
from eldr_operator.drift.judge import ON_TRIAL
from eldr_operator.locality.activation import decide
from eldr_operator.locality.routing import Table
from eldr_operator.unwritten import FOREIGN, REFUSED, UNAVAILABLE, Unwritten
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.revisions import Revision
from eldr_operator.workloads.rollback import Choice
from tests.unit.operator.builders import NOW, ago, make_cr, make_fit, make_set, router
from tests.unit.operator.drifted import BAD, GOOD, OTHER, POOR, SHARES, Life
from tests.unit.operator.test_status import DECODE, READY, conditions, seen  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "development" / "states.md").read_text()
EARLIER = "2026-11-21T08:00:00Z"
SET = "sha256:a"


def rows(head):
    """Return the cells of the table with these headings."""
    body = PAGE.partition(f"| {' | '.join(head)} |\n")[2].splitlines()[1:]
    cells = []
    for line in body:
        if not line.startswith("|"):
            break
        cells.append(tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")))
    return cells


class Stage:
    """The set of EldrFit ``a``, in a state, and what happens to it."""

    def __init__(self, make_cr, make_fit, make_set, router, life, now, ago):
        self.cr, self.fits, self.blocked = make_cr(), [make_fit("a")], ()
        self.routers = [router("r0"), router("r1")]
        self.table, self.is_out_of_service = Table(), False
        self._make_cr, self._make_fit, self._make_set, self._router = make_cr, make_fit, make_set, router
        self._life, self._now, self._ago = life, now, ago

    def begin(self, state):
        old, own = self._make_set("old"), self._make_set("a")
        served = Table(epoch=1, active=old, activated_at=self._ago(5000))
        self.table = {
            "accepted": Table(),
            "staged": served.but(staged=own, staged_at=self._ago(1)),
            "active": served.but(active=own),
            "out of service": served.but(active=own),
            "previous": served.but(previous=own),
            "blocked": Table(),
        }[state]
        if state == "blocked":
            self.blocked = (SET,)
        if state in {"staged", "previous"}:
            self.fits.append(self._make_fit("old", finished=EARLIER))
        if state == "out of service":
            self._serve(OTHER, BAD)

    def state(self):
        decision = decide(self.cr, self.fits, self.table, self.routers, self._now, blocked=self.blocked)
        held = {
            found.digest: name
            for name in ("previous", "active", "staged")
            if (found := getattr(decision.table, name))
        }
        if SET in held:
            return "out of service" if self.is_out_of_service and held[SET] == "active" else held[SET]
        return "blocked" if SET in self.blocked or SET in decision.refused else "accepted"

    def all_hold(self):
        self.routers = [self._router("r0", staged="a"), self._router("r1", staged="a")]

    def one_holds(self):
        self.routers = [self._router("r0", staged="a"), self._router("r1")]
        self._waited()

    def all_refuse(self):
        self.routers = [self._router("r0", refused=["a"]), self._router("r1", refused=["a"])]
        self._waited()

    def newer(self):
        self.fits.append(self._make_fit("b", finished="2026-11-21T11:00:00Z"))

    def another_serves(self):
        self.newer()
        staged = self._make_set("b")
        self.table = self.table.but(staged=staged, staged_at=self._ago(1))
        self.routers = [self._router("r0", staged="b")]

    def pinned(self):
        self.cr = self._make_cr(centroids={"pin": "a"})

    def scaled(self):
        self.cr = self._make_cr(decode={"replicas": 3})

    def other_model(self):
        self.cr = self._make_cr(model={"uri": "other"})
        self.fits = [fit.model_copy(update={"status": fit.status | {"model": "m"}}) for fit in self.fits]

    def regresses(self):
        self._serve(OTHER, BAD)

    def traffic_returns(self):
        life = self._serve(OTHER, BAD)
        life.window(SHARES, 6, saving=GOOD)
        self.is_out_of_service = life.verdict.protective

    def saves_less_than_predicted(self):
        life = self._life(digest=SET)
        life.window(times=ON_TRIAL, saving=POOR)
        self.blocked = life.state.blocked

    def active_is_blocked(self):
        self.blocked = ("sha256:old",)

    def active_is_blocked_after_scaling(self):
        self.active_is_blocked()
        self.scaled()

    def nothing(self):
        pass

    def _waited(self):
        self.table = self.table.but(staged_at=self._ago(31))

    def _serve(self, shares, saving):
        life = self._life(digest=SET)
        life.window(times=ON_TRIAL)
        life.window(shares, 3, saving=saving)
        self.is_out_of_service = life.verdict.protective
        return life


EVENTS = {
    "it is the newest for the model and the number of decode replicas": Stage.nothing,
    "it is the newest": Stage.nothing,
    "no router holds it yet": Stage.nothing,
    "centroids.pin names it": Stage.pinned,
    "it is for another number of decode replicas": Stage.scaled,
    "the number of decode replicas changes": Stage.scaled,
    "every ready router holds it": Stage.all_hold,
    "one router holds it, the others do not for ackTimeoutSeconds": Stage.one_holds,
    "every router refuses it for ackTimeoutSeconds": Stage.all_refuse,
    "a newer set is accepted": Stage.newer,
    "another set becomes active": Stage.another_serves,
    "the model changes": Stage.other_model,
    "it saves less than JSQ": Stage.regresses,
    "it does not save what was predicted, while on trial": Stage.saves_less_than_predicted,
    "traffic returns": Stage.traffic_returns,
    "the active set is blocked": Stage.active_is_blocked,
    "the active set is blocked, and the number of decode replicas has changed": Stage.active_is_blocked_after_scaling,
}
TRANSITIONS = rows(("from", "event", "to"))


@pytest.fixture
def stage():
    return Stage(make_cr, make_fit, make_set, router, Life, NOW, ago)


@pytest.mark.parametrize(("before", "event", "after"), TRANSITIONS)
def test_a_centroid_set_goes_from_state_to_state_as_the_page_says(stage, before, event, after):
    stage.begin(before)
    EVENTS[event](stage)
    assert stage.state() == after


def test_every_state_is_described_and_reached():
    described = {name for name, *_ in rows(("state", "what it means", "where it stands"))}
    assert {state for before, _, after in TRANSITIONS for state in (before, after)} == described
    assert {event for _, event, _ in TRANSITIONS} == EVENTS.keys()


def unwritten(reason):
    return {"unwritten": [Unwritten("Service", "x", reason, "Service x: no")]}


GONE_BACK = Choice(None, {}, failed="x-decode-2")
HELD = Choice(Revision("x-decode-1", "decode", 1, "", {}, Images("own"), "me", ""), {}, asked="x-decode-2")
PROGRESS = [
    unwritten(REFUSED),
    unwritten(UNAVAILABLE),
    unwritten(FOREIGN),
    {"revisions": {"decode": GONE_BACK}},
    {"decode": replace(DECODE, is_current=False, late="pod x-decode-0 is not ready")},
    {"prefill": replace(READY, is_current=False, is_paused=True)},
    {"prefill": replace(READY, is_current=False)},
    {"revisions": {"decode": HELD}},
    {},
]


def test_progress_of_a_deployment_is_told_as_the_page_says(seen):  # noqa: F811 - the fixture
    table = rows(("reason", "status", "applies while"))
    found = [conditions(seen.but(**change).status(make_cr(), NOW))["Progressing"] for change in PROGRESS]
    assert [(status, reason) for reason, status, _ in table] == found
    # the first that applies wins
    everything = {}
    for change, (_, reason) in reversed([*zip(PROGRESS, found, strict=True)]):
        everything |= change
        if reason not in {UNAVAILABLE, FOREIGN}:  # of several children the first one is told
            assert conditions(seen.but(**everything).status(make_cr(), NOW))["Progressing"][1] == reason


def test_every_reason_of_progressing_is_on_the_page():
    source = (ROOT / "operator" / "eldr_operator" / "status.py").read_text()
    body = source.partition("def _progressing(")[2].partition("\ndef ")[0]
    known = {*re.findall(r'"Progressing", "\w+", "(\w+)"', body), ROLLED_BACK, REFUSED, UNAVAILABLE, FOREIGN}
    assert known == {reason for reason, *_ in rows(("reason", "status", "applies while"))}
