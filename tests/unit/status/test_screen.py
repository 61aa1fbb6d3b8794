"""The screen of `eldr status`. The golden file is rewritten by ``ELDR_GOLDEN=write pytest tests/unit/status``."""

import copy
import json
import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from eldr.status import hold
from eldr.status.overview import document
from eldr.status.served import spans
from eldr.status.summary import summarize
from eldr.status.text import lines
from tests.unit.status import night
from tests.unit.status.night import NOW, condition

GOLDEN = Path(__file__).parent / "night.txt"


def screen(deployment=None, fits=None, *, width=120, plain=False, notes=()):
    found = deployment or night.deployment()
    overview = summarize(found, night.fits() if fits is None else fits, NOW, notes)
    return [line.text for line in lines(overview, width, plain=plain)]


def entry(shown, label):
    """Return what stands behind a label, on one line."""
    start = next(at for at, line in enumerate(shown) if line.startswith(label))
    rest = []
    for line in shown[start + 1 :]:
        if not line.startswith(" "):
            break
        rest.append(line.strip())
    return " ".join([shown[start][len(label) :].strip(), *rest])


def test_a_night_with_two_drifts():
    text = "\n".join(screen()) + "\n"
    if os.environ.get("ELDR_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_one_screen():
    assert len(screen()) <= 48
    assert max(map(len, screen(width=80))) <= 100
    assert all(line.isascii() for line in screen(plain=True))


def test_the_commands_for_clients_have_what_routers_ask_for():
    found = night.deployment()
    found["spec"]["router"]["apiKeysSecret"] = "keys"
    found["status"] |= {"url": "https://chat.team.svc", "model": "it's"}
    quoted = """'{"model": "it'"'"'s", "prompt": "Hello"}'"""
    for width in (40, 120):
        shown = screen(found, width=width)
        at = next(at for at, line in enumerate(shown) if line.startswith("clients"))
        assert [line.strip() for line in shown[at + 1 : at + 4]] == [
            "kubectl port-forward -n team svc/chat 8443:443 &",
            "curl --retry 5 --retry-connrefused https://localhost:8443/v1/completions \\",
            f"-H 'content-type: application/json' --cacert ca.crt -H 'authorization: Bearer KEY' -d {quoted}",
        ]


def test_before_the_first_fit():
    found = night.deployment(centroids={}, history=[], locality={}, refit={})
    why = "no centroid set yet: requests go to the engine with the fewest in flight"
    found["status"]["conditions"] = [
        condition("CentroidsActive", "False", "Bootstrapping", why, "2026-11-22T07:00:00Z"),
        condition("DriftDetected", "Unknown", "NoSet", "no centroid set is active", "2026-11-22T07:00:00Z"),
    ]
    found["status"]["router"] = {"policyInEffect": "JSQ", "desired": 1, "ready": 1}
    shown = screen(found, [])
    assert entry(shown, "centroids") == "no set serves"
    assert not any(re.match(r"experts|next fit|  \S", line) for line in shown), "this is no problem"


def test_marginal_union_without_a_set_lacks_nothing():
    found = night.deployment()
    found["spec"]["router"]["policy"] = found["status"]["router"]["policyInEffect"] = "MarginalUnion"
    found["status"]["conditions"] = [
        condition(
            "CentroidsActive", "False", "LearnedPrior", "no centroid set is needed", "2026-11-22T07:00:00Z"
        )
    ]
    shown = screen(found)
    assert entry(shown, "policy") == "MarginalUnion, in effect"
    assert not any("LearnedPrior" in line for line in shown), "nothing is missing"


def test_a_fit_that_regresses_is_not_said_to_save():
    bad = night.fit(
        "chat-1", "Manual", "2026-11-21T12:00:00Z", "Regresses", "WorseThanJSQ: would use 7.6 % more active experts",
        status="False", samples=397, predictedReductionPercent="-7.6",
    )  # fmt: skip
    (line,) = (each for each in screen(night.deployment(history=[]), [bad]) if "chat-1" in each)
    assert " ".join(line.split()) == "chat-1 Manual 12:00 Regresses uses 7.6 % more than JSQ 397 records"


def test_what_the_operator_has_not_done_is_said():
    silent = {"metadata": {"name": "chat", "namespace": "team", "generation": 1}, "spec": {}}
    shown = screen(silent, [])
    assert entry(shown, "note").startswith("the operator has written no status yet: is it running")
    assert entry(shown, "ready") == "not known yet"
    assert "problems: not known yet" in shown
    late = night.deployment(observedGeneration=3)
    assert "the operator has not seen the last change of the spec yet" in entry(screen(late), "note")
    assert entry(screen(notes=["fits are forbidden"]), "note") == "fits are forbidden"


def test_nothing_moves_the_cursor():
    found = night.deployment()
    found["status"]["conditions"][-1]["message"] = "a\x1b[2Jb\x07 \x9b1m c\nd"
    shown = screen(found)
    assert "a?[2Jb? ?1m c d" in entry(shown, "drift ")
    assert all(line.isprintable() for line in shown)


FOREIGN = [
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    None,
    3,
    "no",
    [],
    [3],
    {},
    {"x": 1},
    True,
    -1e400,
    "nan",
    "9" * 5000,
    10**400,
]


def paths(found, at=()):
    """Yield where each value of an object is."""
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield (*at, key)
            yield from paths(value, (*at, key))


def put(found, path, value):
    made = copy.deepcopy(found)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


@pytest.mark.slow
@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: str(value)[:12])
def test_whatever_stands_somewhere_the_rest_is_shown(value):
    deployment, fits = night.deployment(), night.fits()[:2]
    for path in paths(deployment):
        overview = summarize(put(deployment, path, value), fits, NOW)
        assert lines(overview, 100)
        json.loads(json.dumps(document(overview), allow_nan=False))
    for path in paths(fits):
        overview = summarize(
            deployment, [one for one in put(fits, path, value) if isinstance(one, dict)], NOW
        )
        assert any("2 prefill, 4 decode" in line.text for line in lines(overview, 100))


def test_json_tells_the_same():
    told = document(summarize(night.deployment(), night.fits(), NOW))
    assert told["version"] == 1
    assert told["at"] == "2026-11-22T07:10:30Z"
    assert told["saving"]["now_percent"] == pytest.approx(9.4)
    assert told["policy"]["in_effect"] == ["ELDR"]
    assert [fit["name"] for fit in told["fits"]] == [
        *("chat-drift-3", "chat-drift-2", "chat-drift-1", "chat-noon", "chat-bootstrap")
    ]
    (served,) = told["fits"][1]["served"]
    assert (served["since"], served["until"]) == ("2026-11-22T05:20:00Z", "2026-11-22T05:31:00Z")
    assert [found["type"] for found in told["problems"]] == ["SignaturesReported"]
    assert len(told["drift"]["day"]) == 36
    assert summarize(night.deployment(), [], NOW + timedelta(days=9)).drift.day, (
        "whatever the clock here says"
    )


def test_a_set_serves_until_it_goes_out_of_service_and_again_when_it_comes_back():
    told = [
        {"time": "2026-11-22T01:00:00Z", "fit": "f", "epoch": 1, "reason": "Accepted"},
        {"time": "2026-11-22T02:00:00Z", "fit": "f", "epoch": 1, "reason": "Protective"},
        {"time": "2026-11-22T03:00:00Z", "fit": "f", "epoch": 1, "reason": "ServesAgain"},
    ]
    first, second = spans(told)["f"]
    assert (first.since.hour, first.until.hour) == (1, 2)
    assert first.ended == "it did worse than placement by load, which was in effect from then on"
    assert (second.since.hour, second.until, second.began) == (3, None, "ServesAgain")
    assert len(spans(told[:2])["f"]) == 1


def test_a_comparison_is_told_and_nothing_advises_to_end_it():
    found = night.deployment()
    suspended = condition(
        "CentroidsActive", "False", "Suspended", "set it to Disabled", "2026-11-22T07:00:00Z"
    )
    found["status"]["conditions"] = [suspended]
    held = hold.new(found, "a", NOW, "JSQ")
    found["metadata"]["annotations"] = {hold.ANNOTATION: held.dump()}
    assert "now JSQ" in entry(screen(found), "compare")
    assert not any("Suspended" in line for line in screen(found) if line.startswith("  "))
    killed = replace(held, until=NOW - timedelta(seconds=1))
    found["metadata"]["annotations"] = {hold.ANNOTATION: killed.dump()}
    assert "undo it: eldr compare chat --restore" in entry(screen(found), "compare")
