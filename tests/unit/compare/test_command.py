"""`eldr compare` before it begins: what is refused, and its reference."""

import json
import re

import pytest
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.compare.cli import command
from eldr.compare.figures import Figures
from eldr.compare.report import document, report
from eldr.compare.run import Measured
from eldr.status import hold
from tests.support.api_server import as_json, knowing
from tests.support.reference import undocumented

DEPLOYMENT = f"/apis/{contract.API_VERSION}/namespaces/team/eldrdeployments/x"
RESOURCE = {
    "metadata": {"name": "x", "resourceVersion": "5", "annotations": {}},
    "spec": {"router": {"policy": "JSQ"}},
}


@pytest.fixture
def answers(tmp_path):
    found = {DEPLOYMENT: as_json(RESOURCE), "/api/v1/namespaces/team/pods": as_json({"items": []})}
    with knowing(found, tmp_path) as patches:
        found["patches"] = patches
        yield found


def fails(*arguments, code=1):
    done = CliRunner().invoke(main, ["compare", *arguments])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hours", "0.1"], ("TooShort", "--hours 0.1 holds 0 pairs", "raise --hours or lower --window")),
        (
            ["--window", "40"],
            ("WindowTooShort", "requests last up to 30 s", "--window 40", "name 60 at least"),
        ),
    ],
)
def test_spans_that_cannot_be_measured_are_refused(answers, arguments, words):
    said = fails("x", "--against", "MarginalUnion", *arguments)
    for word in words:
        assert word in said, said
    assert answers["patches"] == []


def test_either_another_policy_or_restore(answers):
    assert "name the other policy by --against" in fails("x", code=2)
    assert "name the other policy by --against" in fails("x", "--against", "JSQ", "--restore", code=2)
    assert "'jsq' is not one of" in fails("x", "--against", "jsq", code=2)
    assert "NotFound: there is no EldrDeployment none" in fails("none", "--restore")
    answers[DEPLOYMENT] = (403, '{"message": "you may not"}')
    assert "you may not; a comparison takes get and patch of eldrdeployments" in fails("x", "--restore")


def test_restore_writes_what_was_before(answers):
    assert "nothing to restore" in fails("x", "--restore", code=0)
    told = {"id": "i", "until": "2026-01-01T00:00:00Z"}
    was = {"policy": "ELDR", "suspend": "Disabled", "mode": "Disabled"}
    now = {"policy": "JSQ", "suspend": "Enabled", "mode": "Observe"}
    mark = json.dumps(told | {"was": was, "now": now})
    spec = {"router": {"policy": "JSQ"}, "refit": {"suspend": "Enabled", "drift": {"mode": "Enabled"}}}
    annotations = {hold.ANNOTATION: mark}
    answers[DEPLOYMENT] = as_json(
        {"metadata": {"name": "x", "resourceVersion": "5", "annotations": annotations}, "spec": spec}
    )
    shown = fails("x", "--restore", code=0)
    assert "policy ELDR as before" in shown
    assert re.match(r"\S+ cluster: http://127\.0\.0\.1:\d+ \(context here\)", shown)
    ((_, patch),) = answers["patches"]
    assert patch == {
        "metadata": {"resourceVersion": "5", "annotations": {hold.ANNOTATION: None}},
        "spec": {"router": {"policy": "ELDR"}, "refit": {"suspend": "Disabled"}},
    }, "drift.mode is somebody else's by now"


def test_every_field_and_option_is_documented():
    windows = [Measured(n // 2, "JSQ", Figures(0.06, 0.5, 900.0, 10)) for n in range(6)]
    told = document(report(windows, [True, False] * 3, "MarginalUnion", "JSQ", 7))
    names = [*told, *told["tpot"], *told["tpot"]["change"]]
    assert undocumented("compare", names, command) == []
