"""`eldr rollout` against a server that plays the API: what it goes back to, what it sets, and what it says."""

import re

import pytest
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.rollout import revisions
from eldr.rollout.revisions import UndoError
from tests.support.api_server import as_json, knowing

DEPLOYMENT = f"/apis/{contract.API_VERSION}/namespaces/team/eldrdeployments/chat"
REVISIONS = "/apis/apps/v1/namespaces/team/controllerrevisions"


def kept(role, number, *, key="k", completed="", failed=""):
    marks = {contract.ANNOTATION_COMPLETED: completed, contract.ANNOTATION_FAILED: failed}
    template = {
        "metadata": {"labels": {contract.LABEL_KV: key}},
        "spec": {"containers": [{"name": "side", "image": "s"}, {"name": "engine", "image": f"e:{number}"}]},
    }
    return {
        "metadata": {
            "name": f"chat-{role}-{number}",
            "labels": {contract.LABEL_REVISION_OF: role},
            "annotations": {name: value for name, value in marks.items() if value},
            "creationTimestamp": "2026-11-20T00:00:00Z",
        },
        "revision": number,
        "data": {"template": template},
    }


def deployment(prefill=2, decode=2, *, reason="RolloutComplete", status="True", seen=4, **others):
    role = {"ready": 2, "desired": 2}
    progressing = {"type": "Progressing", "status": status, "reason": reason, "message": "so it is"}
    expected = dict.fromkeys(("PrefillReady", "DecodeReady", "RouterReady", "ConfigValid"), "True")
    conditions = [
        {"type": name, "status": stands, "reason": "Told", "message": f"{name} it is"}
        for name, stands in (expected | others).items()
    ]
    return {
        "metadata": {"name": "chat", "generation": 4},
        "spec": {},
        "status": {
            "prefill": role | {"revision": f"chat-prefill-{prefill}"},
            "decode": role | {"revision": f"chat-decode-{decode}"},
            "conditions": [progressing | {"observedGeneration": seen}, *conditions],
        },
    }


def back(found, *roles, live=None, to=""):
    known = [*filter(None, map(revisions.revision, found))]
    chosen = revisions.before(live or deployment(), known, roles, to=to)
    return {role: each.number for role, each in chosen.items()}


WORKED = [
    kept("prefill", 1, completed="2026-11-01"),
    kept("prefill", 2, completed="2026-11-05"),
    kept("decode", 1, completed="2026-11-02"),
    kept("decode", 2, completed="2026-11-06"),
]


def test_the_role_whose_rollout_ended_last_goes_back():
    assert back(WORKED) == {"decode": 1}
    assert back([*WORKED[:3], kept("decode", 2, completed="2026-11-03")]) == {"prefill": 1}
    assert back(WORKED, "prefill") == {"prefill": 1}
    assert back(WORKED, "prefill", "decode") == {"prefill": 1, "decode": 1}


def test_roles_whose_rollout_is_not_over_go_back():
    assert back([*WORKED[:3], kept("decode", 2)]) == {"decode": 1}
    assert back([WORKED[0], kept("prefill", 2), WORKED[2], kept("decode", 2)]) == {"prefill": 1, "decode": 1}


def test_a_role_that_is_on_its_way_to_what_worked_once_goes_back():
    found = [
        *WORKED[:3],
        kept("decode", 2, completed="2026-10-01"),
        kept("decode", 3, completed="2026-11-03"),
    ]
    assert back(found) == {"decode": 3}


def test_what_the_operator_has_not_seen_is_not_undone():
    with pytest.raises(UndoError, match="not seen the last change"):
        back(WORKED, live=deployment(seen=3))


def test_the_other_role_goes_back_where_kv_could_not_move():
    found = [*WORKED[:1], kept("prefill", 2, key="new", completed="2026-11-05"), WORKED[2]]
    new = kept("decode", 2, key="new", completed="2026-11-06")
    assert back([*found, new]) == {"decode": 1, "prefill": 1}
    assert back([*found, new], "decode") == {"decode": 1}, "who names a role means it"
    assert back([*found[1:], new]) == {"decode": 1}, "no prefill revision of that key worked"


def test_a_revision_by_name():
    assert back(WORKED, to="chat-prefill-1") == {"prefill": 1}
    with pytest.raises(UndoError, match=r"no revision chat-prefill-9 of prefill or decode"):
        back(WORKED, to="chat-prefill-9")


def test_nothing_to_go_back_to():
    with pytest.raises(UndoError, match=r"no earlier revision of decode"):
        back([WORKED[1], WORKED[3], kept("decode", 1)])
    with pytest.raises(UndoError, match=r"no revision of its engines is known yet"):
        back([], live=deployment())
    with pytest.raises(UndoError, match=r"gone back already"):
        back(WORKED, live=deployment(reason="RolledBack", status="False"))
    assert back(WORKED, "decode", live=deployment(reason="RolledBack", status="False")) == {"decode": 1}


@pytest.mark.parametrize(
    "live",
    [{}, {"metadata": {}}, {"metadata": {"name": "x", "labels": {}}}, {**kept("decode", 1), "data": None}],
)
def test_what_is_no_revision_of_ours(live):
    assert revisions.revision(live) is None


@pytest.fixture
def server(tmp_path):
    """What the server answers, by path, and the patches that it was sent."""
    found = {DEPLOYMENT: as_json(deployment()), REVISIONS: as_json({"items": WORKED})}
    with knowing(found, tmp_path) as patches:
        yield found, patches


def run(*arguments, code=0):
    done = CliRunner().invoke(main, ["rollout", *arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.usefixtures("server")
def test_status():
    rows = [line.split() for line in run("status", "chat").splitlines()]
    assert ["chat-decode-1", "2026-11-02", "-", "e:1"] in rows


GOES_ON = deployment(reason="RolloutInProgress")


@pytest.mark.parametrize(
    ("looks", "code", "said"),
    [
        ([deployment(seen=3), GOES_ON, deployment()], 0, False),
        ([GOES_ON, deployment(reason="RolledBack", status="False")], 1, True),
        ([GOES_ON, deployment(reason="RevisionHeld")], 0, True),
        ([deployment(DecodeReady="False"), deployment()], 0, False),
    ],
)
def test_status_waits_for_the_end(server, monkeypatch, looks, code, said):
    found, _ = server
    seen = map(as_json, looks)
    found[DEPLOYMENT] = next(seen)
    monkeypatch.setattr("eldr.rollout.cli.time.sleep", lambda _: found.update({DEPLOYMENT: next(seen)}))
    shown = run("status", "chat", "--wait", code=code)
    assert next(seen, None) is None
    assert ("so it is" in shown) == said


@pytest.mark.parametrize("path", [DEPLOYMENT, REVISIONS])
@pytest.mark.parametrize("answer", [(429, "{}"), (503, '{"message": "leader changed"}'), (200, "<html>")])
def test_waiting_goes_on_where_the_api_server_fails_for_a_moment(server, monkeypatch, path, answer):
    found, _ = server
    was = found[path]
    seen = iter(
        [{path: answer, DEPLOYMENT: answer if path == DEPLOYMENT else as_json(deployment())}, {path: was}]
    )
    found[DEPLOYMENT] = as_json(GOES_ON)
    monkeypatch.setattr("eldr.rollout.cli.time.sleep", lambda _: found.update(next(seen)))
    assert "; tries again\n" in run("status", "chat", "--wait")
    assert next(seen, None) is None


@pytest.mark.parametrize(("status", "timeout"), [(403, "60"), (503, "0.05")])
def test_waiting_ends_with_what_does_not_pass_and_with_its_time(server, monkeypatch, status, timeout):
    found, _ = server
    found[DEPLOYMENT] = as_json(GOES_ON)
    monkeypatch.setattr("eldr.rollout.cli.time.sleep", lambda _: found.update({DEPLOYMENT: (status, "{}")}))
    run("status", "chat", "--wait", "--timeout", timeout, code=1)


def test_a_spec_that_cannot_be_used_is_no_success(server):
    found, _ = server
    found[DEPLOYMENT] = as_json(deployment(ConfigValid="False"))
    assert "ConfigValid=False, Told: ConfigValid it is" in run("status", "chat", "--wait", code=1)


def test_what_is_set(server):
    _, patches = server
    done = CliRunner().invoke(main, ["rollout", "undo", "chat"])
    assert done.stdout == "decode: rollout.revision is now chat-decode-1, rollout.pause is now Disabled\n"
    assert re.fullmatch(r"cluster: http://127\.0\.0\.1:\d+ \(context here\)\n", done.stderr)
    run("pause", "chat")
    run("resume", "chat", "--role", "prefill")
    run("undo", "chat", "--to-revision", "chat-prefill-1")
    assert [path for path, _ in patches] == [DEPLOYMENT] * 4
    assert [body for _, body in patches] == [
        {"spec": {"decode": {"rollout": {"revision": "chat-decode-1", "pause": "Disabled"}}}},
        {"spec": {role: {"rollout": {"pause": "Enabled"}} for role in ("prefill", "decode")}},
        {"spec": {"prefill": {"rollout": {"pause": "Disabled", "revision": ""}}}},
        {"spec": {"prefill": {"rollout": {"revision": "chat-prefill-1", "pause": "Disabled"}}}},
    ]


def test_what_goes_wrong_is_explained(server):
    found, _ = server
    assert "NotFound: there is no EldrDeployment other in namespace team" in run("pause", "other", code=1)
    assert "leave --role out" in run("undo", "chat", "--role", "decode", "--to-revision", "x", code=2)
    found[REVISIONS] = as_json({"items": 3})
    assert "ClusterUnreachable" in run("status", "chat", code=1)


def test_the_way_to_the_deployment_may_stand_before_or_after_the_subcommand(server, tmp_path):
    config = str(tmp_path / "config")
    leads = ["--context", "elsewhere", "-n", "team", "--kubeconfig", config]
    for arguments in (["status", "chat", *leads], [*leads, "status", "chat"]):
        assert CliRunner().invoke(main, ["rollout", *arguments]).exit_code == 0
    found = CliRunner().invoke(main, ["rollout", "-n", "team", "status", "chat", "-n", "x"])
    assert "in namespace x" in found.output, "the nearer one counts"


@pytest.mark.parametrize("name", ["", "a/b"])
@pytest.mark.parametrize("command", ["status", "pause"])
def test_what_can_be_no_name_is_refused_before_anything_is_asked(server, command, name):
    assert f"NoName: NAME {name!r}" in run(command, name, code=1)
    assert server[1] == []
