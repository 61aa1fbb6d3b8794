"""What routers tell is not believed blindly: one bad field is unknown, and the rest is known."""

import asyncio
import json
import math
from datetime import timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from hypothesis import example, given
from hypothesis import strategies as st

from eldr import admin_tls, contract
from eldr_operator import parsing
from eldr_operator.kube.authorities import Trust
from eldr_operator.locality import routers, signatures, step_time
from eldr_operator.locality.router_view import RouterView
from tests.unit.operator.builders import HUGE, NOW, ODD, POD, make_cr


def counter(quality):
    return contract.signature_counter(quality)


def state(**changes):
    similarity = [0] * contract.SIMILARITY_BINS
    similarity[90] = 3
    good = {
        "v": 1,
        "router": "0a1b",
        "policy": "ELDR",
        "problem": None,
        "active": {"fit": "f", "digest": "sha256:a"},
        "staged": None,
        "refused": [{"digest": "sha256:b", "reason": "a shard is gone"}],
        "samples": 7,
        "counters": {counter("exact"): 5.0},
        "step_time": {
            "fixed": 1e-3,
            "per_expert": 1e-6,
            "per_request": 1e-6,
            "windows": 3,
            "expert_share": 0.4,
        }
        | {"expert_share_error": 0.01},
        "traffic": {"epoch": 1, "digest": "sha256:a", "requests": 3, "similarity": similarity}
        | {"clusters": [1, 2], "logged": 3},
        "saving": {"share": 0.1, "error": 0.01, "steps": 5, "batch": 8.0},
    }
    return good | changes


FIELDS = sorted(state())


def everything(view):
    """Do with a view what a pass does, and return what is shown of it."""
    shown = step_time.status(make_cr(), [view]), view.policy, view.complaint, dict(view.refused or {})
    window, _ = signatures.advance(None, [view], NOW)
    return json.dumps([*shown, window.start], allow_nan=False).encode()


def test_a_good_state_is_read_whole():
    view = RouterView.of(POD, state())
    assert (view.policy, view.active, view.samples, view.router, view.odd) == (
        *("ELDR", "sha256:a", 7, "0a1b"),
        (),
    )
    assert view.refused == {"sha256:b": "a shard is gone"}
    assert (view.signatures["exact"], view.expert_share) == (5, 0.4)
    assert view.step_time is not None
    assert view.traffic is not None
    assert view.saving is not None


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(type(value).__name__) + repr(value)[:12])
@pytest.mark.parametrize("field", FIELDS)
def test_one_odd_field_loses_only_itself(field, value):
    view = RouterView.of(POD, state(**{field: value}))
    assert len(everything(view)) < 5000
    good = RouterView.of(POD, state())
    follow = {
        "router": {"traffic"},
        "step_time": {"expert_share", "expert_share_error"},
        "problem": {"complaint"},
    }
    may = {field, "odd", *follow.get(field, set())} | ({"signatures"} if field == "counters" else set())
    for name in RouterView.__slots__:
        assert name in may or getattr(view, name) == getattr(good, name), name


@pytest.mark.parametrize(
    ("field", "key", "value"),
    [
        *(("step_time", "expert_share", value) for value in (math.nan, HUGE, 5, None, True)),
        *(("step_time", "expert_share_error", value) for value in (math.nan, -1)),
        *(("saving", "share", value) for value in (HUGE, math.nan, 1.01)),
        *(("saving", key, -1) for key in ("batch", "error", "drafts")),
        *(("saving", "steps", value) for value in (1 << 60, -1)),
        *(("traffic", "requests", value) for value in (HUGE, math.inf, 4)),
        ("traffic", "digest", "a\ud800"), ("traffic", "epoch", HUGE), ("traffic", "logged", HUGE),
        *(("counters", counter("exact"), value) for value in (math.inf, HUGE, -5, "5")),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_unknown_and_told(field, key, value):
    good = state()
    view = RouterView.of(POD, state(**{field: good[field] | {key: value}}))
    assert view.odd == (field,)
    unknown = {
        "step_time": view.expert_share,
        "saving": view.saving,
        "traffic": view.traffic,
        "counters": view.signatures.get("exact"),
    }
    assert unknown[field] is None
    everything(view)


@pytest.mark.slow
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3), max_leaves=5,
), st.sampled_from(FIELDS))  # fmt: skip
def test_whatever_a_field_holds_can_be_shown(value, field):
    everything(RouterView.of(POD, state(**{field: value})))


@given(st.text(st.characters(codec=None)))
@example("a\0b\ud800\x1b[31m\n")
@example("x" * 100_000)
def test_texts_can_be_written_anywhere(told):
    found = parsing.text(told)
    assert len(found.encode()) <= 4 * 500
    assert found.isprintable()


def test_qualities_that_went_down_or_were_not_told_count_nothing():
    def view(**counts):
        return RouterView.of(POD, state(counters={counter(quality): n for quality, n in counts.items()}))

    window, _ = signatures.advance(None, [view(exact=50, wire_error=math.inf)], NOW)
    later = NOW + timedelta(minutes=1)
    _, answers = signatures.advance(window, [view(exact=70, inexact=0, wire_error=900)], later)
    assert answers is not None
    assert (answers["exact"], answers["wire_error"]) == (20, 0)
    _, answers = signatures.advance(window, [view(exact=0)], later)
    assert answers is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 200_000, "cannot read"),
        (b"{", "cannot read"),
        (b"null", "cannot read"),
        (b"5", "cannot read"),
        (b'{"policy": "JSQ"}', "cannot read"),
        (b"\xff", "cannot read"),
        (json.dumps(state(samples=math.inf)).encode(), ""),
    ],
)
async def test_what_routers_answer_stops_no_look(content, said):
    async def fetch(_url: str, _token: str) -> bytes:
        return content

    (view,) = await routers.look(fetch, [POD], "t")
    assert said in view.problem
    assert bool(view.problem) == bool(said)


async def _large(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b" " * (5 << 20))


async def _dripping(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b" ")
        await asyncio.sleep(0.01)


async def _asked_for(request: web.Request) -> web.StreamResponse:
    assert request.headers["Authorization"] == "Bearer t"
    return web.json_response(state(samples=7))


async def _elsewhere(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def _broken(request: web.Request) -> web.StreamResponse:
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (_asked_for, ""),
        (_large, "cannot read"),
        (_dripping, "does not answer (TimeoutError)"),
        (_elsewhere, "answers 302"),
        (_broken, "does not answer (ServerDisconnectedError)"),
    ],
)
async def test_no_server_stops_a_look(handler, said, monkeypatch):
    monkeypatch.setattr(routers, "_LONGEST_SECONDS", 1.0)
    async with RawTestServer(handler) as server, routers.session() as client:
        there = str(server.make_url("/"))
        (view,) = await routers.look(lambda _url, token: routers.fetch(client, there, token), [POD], "t")
    assert said in view.problem
    assert bool(view.problem) == bool(said)
    assert view.samples == (0 if said else 7)


async def test_a_router_is_asked_again_over_the_same_connection_but_where_it_has_a_certificate_to_show():
    seen = []

    async def handler(request):
        seen.append(request.transport)
        return web.Response(body=b"{}")

    async with RawTestServer(handler) as server, routers.session() as client:
        url = str(server.make_url("/"))
        for trust in (None, None, Trust(admin_tls.unverified(), "x"), Trust(admin_tls.unverified(), "x")):
            await routers.fetch(client, url, "t", trust)
    first, again, checked, checked_again = seen
    assert first is again
    assert checked is not checked_again
