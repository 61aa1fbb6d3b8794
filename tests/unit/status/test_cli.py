"""`eldr status` against a server that plays the API: what is shown, and what is said where nothing can be."""

import pytest
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.status.cli import command
from eldr.status.overview import document
from eldr.status.summary import summarize
from tests.support.api_server import as_json, knowing
from tests.support.reference import undocumented
from tests.unit.status import night

PREFIX = f"/apis/{contract.API_VERSION}/namespaces/team"
DEPLOYMENT, FITS = f"{PREFIX}/eldrdeployments/chat", f"{PREFIX}/eldrfits"


@pytest.fixture
def answers(tmp_path):
    """What the server answers, by path: status and body."""
    found = {
        DEPLOYMENT: as_json(night.deployment()),
        FITS: as_json({"items": night.fits()}),
    }
    with knowing(found, tmp_path):
        yield found


def run(*arguments):
    return CliRunner().invoke(main, ["status", *arguments])


def fails(*arguments):
    done = run(*arguments)
    assert done.exit_code == 1, done.output
    return " ".join(done.output.split())


@pytest.mark.usefixtures("answers")
def test_it_is_shown_without_colours_where_nobody_looks():
    for arguments in (["chat"], ["chat", "--context", "elsewhere", "-n", "team"]):
        done = run(*arguments)
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("chat in namespace team, ")
        assert "  chat-drift-3  " in done.stdout
        assert "\x1b" not in done.stdout


def test_every_field_and_option_is_documented():
    told = document(summarize(night.deployment(), night.fits(), night.NOW))

    def names(found):
        match found:
            case dict():
                # roles are values
                yield from (name for name in found if name not in told["pods"])
                for one in found.values():
                    yield from names(one)
            case list():
                for one in found:
                    yield from names(one)

    assert undocumented("status", names(told), command) == []


def test_without_the_right_to_see_fits_the_rest_is_shown(answers):
    answers[FITS] = (403, '{"message": "you may not list eldrfits"}')
    done = run("chat")
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "note fits are known from status.history only: Forbidden: you may not list eldrfits" in said
    assert "EldrFit deleted" not in said, "nobody knows whether they were"
    assert "epoch 3; saved less than predicted, or its traffic was over: rolled back to chat-drift-1" in said


def test_fits_that_are_no_list_are_said_and_the_rest_is_shown(answers):
    answers[FITS] = as_json({"items": None})
    done = run("chat")
    assert done.exit_code == 0, done.output
    assert "a list in items" in " ".join(done.output.split())


def test_what_is_missing_is_said(answers):
    assert "NotFound: there is no EldrDeployment none in namespace team" in fails("none")
    answers[DEPLOYMENT] = (404, "404 page not found\n")
    assert "NotInstalled" in fails("chat")
    answers[DEPLOYMENT] = (403, '{"message": "you may not"}')
    assert "Forbidden: you may not; the status of a deployment takes get of eldrdeployments" in fails("chat")
    for body in ("<html>", "[]", '{"metadata": {"name": 3}, "spec": {}}', "[" * 100_000):
        answers[DEPLOYMENT] = (200, body)
        assert "ClusterUnreachable: EldrDeployment chat" in fails("chat")
