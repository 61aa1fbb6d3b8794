"""The limit in front of an engine: whom it admits, what it costs who is refused, and what is left when somebody goes."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from eldr import engine_limit
from eldr.contract import PATH_LOAD
from eldr.engine_limit import Bound, EngineLimit, InFlight, hold_to, sequences_of
from eldr_router.api.bodies import freeing_body

BODY = b'{"prompt": "a", "max_tokens": 8}'


class Engine:
    """An application that answers when it is let, behind a limit."""

    def __init__(self, limit=3):
        self.at_work, self.most, self.heard = 0, 0, []
        self.go = asyncio.Event()
        self.in_flight, self.changes, self.refusals = InFlight(), [], 0
        state = SimpleNamespace()
        self.app = EngineLimit(self.answer, state)
        hold_to(state, Bound(self.in_flight, limit, self.changes.append, self.refuse))

    def refuse(self):
        self.refusals += 1

    async def answer(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.heard.append(body)
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await self.go.wait()
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
            )
            await send({"type": "http.response.body", "body": b"done"})
        finally:
            self.at_work -= 1

    async def ask(
        self,
        body=BODY,
        *,
        path="/v1/completions",
        method="POST",
        headers=(),
        parts=None,
        root="",
        then=None,
        pause=0.0,
    ):
        """Return status, headers and body of an answer; ``then`` is awaited after the last part of a body that does not end, ``pause`` before each."""
        sent = []
        parts = [body] if parts is None else list(parts)

        async def receive():
            if parts:
                part = parts.pop(0)
                if pause:
                    await asyncio.sleep(pause)
                return {"type": "http.request", "body": part, "more_body": bool(parts) or then is not None}
            if then is not None:
                await then
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": root + path,
            "root_path": root,
            "headers": list(headers),
        }
        await self.app(scope, receive, send)
        if not sent:
            return None
        return sent[0]["status"], dict(sent[0]["headers"]), b"".join(one["body"] for one in sent[1:])

    async def begin(self, count=1, **asked):
        """Ask so many times, and let each come as far as it can."""
        tasks = [asyncio.create_task(self.ask(**asked)) for _ in range(count)]
        await self.settled()
        return tasks

    async def end(self, tasks):
        """Let the engine answer all, and return the answers."""
        self.go.set()
        return await asyncio.gather(*tasks)

    async def settled(self):
        for _ in range(10):
            await asyncio.sleep(0)


async def test_what_is_above_the_limit_is_refused_before_the_engine_hears_of_it():
    engine = Engine(limit=3)
    first = await engine.begin(3)
    status, headers, body = await engine.ask()
    assert (status, headers[b"x-eldr-full"], headers[b"x-eldr-load"]) == (429, b"3/3", b"3/3")
    assert json.loads(body)["error"]["message"].startswith(
        "this engine has 3 of 3 sequences in flight; retry"
    )
    assert len(engine.heard) == 3
    answers = await engine.end(first)
    assert [status for status, _, _ in answers] == [200] * 3
    assert sorted(headers[b"x-eldr-load"] for _, headers, _ in answers) == [b"1/3", b"2/3", b"3/3"]
    assert engine.in_flight.count == 0
    assert (engine.changes[-1], max(engine.changes), engine.refusals) == (0, 3, 1)


@pytest.mark.parametrize("path", sorted(engine_limit.GENERATES))
async def test_each_path_that_generates_counts(path):
    engine = Engine(limit=1)
    tasks = await engine.begin(path=path, root="/behind")
    assert (await engine.ask(path=path))[0] == 429
    await engine.end(tasks)


async def test_other_paths_pass_and_say_how_full_the_engine_is():
    engine = Engine(limit=1)
    tasks = await engine.begin()
    tasks += await engine.begin(path="/metrics", method="GET")
    status, headers, body = await engine.ask(path=PATH_LOAD, method="GET")
    assert (status, json.loads(body), headers[b"x-eldr-load"]) == (
        200,
        {"v": 1, "in_flight": 1, "limit": 1},
        b"1/1",
    )
    _, (status, headers, _) = await engine.end(tasks)
    assert (status, headers[b"content-type"], b"x-eldr-load" in headers) == (200, b"text/plain", True)


async def test_an_engine_without_a_limit_is_left_alone():
    engine = Engine()
    engine.app = EngineLimit(engine.answer, SimpleNamespace())
    engine.go.set()
    status, headers, _ = await engine.ask()
    assert status == 200
    assert b"x-eldr-load" not in headers
    assert (await engine.ask(path=PATH_LOAD, method="GET"))[2] == b"done"


async def test_a_request_is_judged_by_the_limit_that_its_router_sends_and_no_other_one():
    engine = Engine(limit=4)
    tasks = await engine.begin(2)
    status, headers, _ = await engine.ask(headers=[(b"x-eldr-limit", b"2")])
    assert (status, headers[b"x-eldr-full"], headers[b"x-eldr-load"]) == (429, b"2/2", b"2/4")
    for limit in (b"3", b"1000000"):
        tasks += await engine.begin(headers=[(b"x-eldr-limit", limit)])
    assert engine.in_flight.count == 4
    # no header passes the engine's own limit
    for headers in (
        [(b"x-eldr-limit", b"9")],
        [(b"x-eldr-limit", b"x")],
        [(b"x-eldr-limit", b"-3")],
    ):
        assert (await engine.ask(headers=headers))[0] == 429
    await engine.end(tasks)
    assert engine.in_flight.count == 0


async def test_one_free_place_admits_a_request_of_many_sequences_which_counts_them_all():
    engine = Engine(limit=4)
    tasks = await engine.begin(3)
    tasks += await engine.begin(body=b'{"prompt": ["a", "b"], "n": 3}')
    assert engine.in_flight.count == 9
    assert (await engine.ask())[1][b"x-eldr-full"] == b"9/4"
    await engine.end(tasks)
    assert engine.in_flight.count == 0


async def test_a_body_that_is_not_complete_has_no_place(monkeypatch):
    engine = Engine(limit=1)
    never = asyncio.Event()
    half = [asyncio.create_task(engine.ask(parts=[b'{"prompt"'], then=never.wait())) for _ in range(20)]
    await engine.settled()
    assert engine.in_flight.count == 0
    tasks = await engine.begin(parts=[b'{"prompt": ', b'"a"', b"}"])
    assert engine.in_flight.count == 1
    await engine.end(tasks)
    assert engine.heard == [b'{"prompt": "a"}']
    never.set()
    assert await asyncio.gather(*half) == [None] * 20  # their clients went away


async def test_a_body_that_does_not_come_or_does_not_end_is_refused(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(engine_limit, "BODY_SECONDS", 0.01)
    for sent in ({"parts": [b"{"], "then": asyncio.Event().wait()}, {"parts": [b" "] * 40, "pause": 0.002}):
        status, _, body = await engine.ask(**sent)
        assert status == 408
        assert "did not come within" in json.loads(body)["error"]["message"]
    monkeypatch.setattr(engine_limit, "MOST_BODY", 1 << 20)
    status, _, body = await engine.ask(parts=[b"x" * (1 << 19)] * 3)
    assert status == 413
    assert "more than 1 MiB" in json.loads(body)["error"]["message"]
    assert engine.in_flight.count == 0
    assert engine.heard == []


async def test_who_hears_the_end_of_an_answer_finds_the_place_free():
    engine = Engine(limit=1)
    engine.go.set()
    counts = []
    ask, scope = engine.app, {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}

    async def receive():
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message):
        counts.append((message["type"], engine.in_flight.count))

    await ask(scope, receive, send)
    assert counts == [("http.response.start", 1), ("http.response.body", 0)]
    assert engine.in_flight.count == 0


async def test_whoever_goes_leaves_no_count_behind():
    engine = Engine(limit=5)
    tasks = await engine.begin(5)
    for task in tasks[:3]:
        task.cancel()
    await engine.settled()
    assert engine.in_flight.count == 2
    engine.go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert engine.in_flight.count == 0

    async def fails(scope, receive, send):
        raise OSError("gone")

    engine.app._app = fails
    with pytest.raises(OSError, match="gone"):
        await engine.ask()
    assert engine.in_flight.count == 0


async def test_many_clients_are_never_more_than_the_limit():
    engine = Engine(limit=4)
    engine.go.set()
    chance = random.Random(7)

    async def client():
        for _ in range(20):
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
            await engine.ask(parts=[BODY[:5], BODY[5:]])

    await asyncio.gather(*(client() for _ in range(64)))
    assert engine.most <= 4
    assert engine.in_flight.count == 0
    assert engine.refusals + len(engine.heard) == 64 * 20


@pytest.mark.parametrize(
    ("body", "sequences"),
    [
        (b'{"prompt": "a"}', 1),
        (b'{"prompt": "a", "n": 4}', 4),
        (b'{"prompt": ["a", "b", "c"]}', 3),
        (b'{"prompt": [1, 2, 3]}', 1),
        (b'{"prompt": [[1, 2], [3]], "n": 2}', 4),
        (b'{"prompt": []}', 1),
        (b'{"prompt_embeds": ["eA==", "eQ=="]}', 2),
        (b'{"messages": [{"role": "user", "content": "a"}], "n": 2}', 2),
        (b'{"input": ["a", "b"]}', 1),
        (b'{"prompt": "a", "n": null}', 1),
        (b'{"prompt": "a", "n": -2}', 1),
        (b'{"prompt": "a", "n": "7"}', 7),
        (b'{"prompt": "a", "n": 1e3}', 1000),
        (b'{"prompt": "a", "n": "1e3"}', 1000),
        (b'{"prompt": "a", "n": 1e999}', 1),
        (b'{"prompt": "a", "n": [3]}', 1),
        (b'{"prompt": "a", "n": true}', 1),
        (b'{"prompt": "a", "n": 1, "n": 6}', 6),
        (b'{"prompt": "a", "use_beam_search": true, "n": 4}', 4),
        (b'{"prompt": "a", "use_beam_search": "false", "stream": "true"}', 1),
        (b'{"prompt": "a", "n": 100000000000000000000000}', 1 << 16),
        (b'{"prompt": {"a": 1}}', 1),
        (b"[]", 1),
        (b"7", 1),
        (b"", 1),
        (b"\xff", 1),
        (b"[" * 100_000, 1),
    ],
)
def test_a_body_says_how_many_sequences_it_wants(body, sequences):
    assert sequences_of("/v1/completions", body) == sequences


@pytest.mark.parametrize(
    ("path", "body", "sequences"),
    [
        ("/v1/chat/completions", b'{"messages": [{}], "n": 3}', 3),
        ("/v1/chat/completions", b'{"messages": [{}], "n": "3.0"}', 3),
        ("/v1/chat/completions/batch", b'{"messages": [[{}], [{}]], "n": 2}', 4),
        ("/inference/v1/generate", b'{"token_ids": [1], "sampling_params": {"n": 5}}', 5),
        ("/generative_scoring", b'{"items": ["a", "b"]}', 2),
        ("/v1/systemone", b'{"questions": {"a": {}, "b": {}}}', 2),
        # what a path does not read costs nobody a place
        ("/v1/chat/completions", b'{"messages": [{}], "prompt": ["a", "b"], "items": ["a", "b"]}', 1),
        ("/v1/completions", b'{"prompt": "a", "sampling_params": {"n": 60000}, "messages": [[], []]}', 1),
        ("/v1/messages", b'{"messages": [{}, {}], "n": 7}', 1),
        ("/v1/responses", b'{"input": ["a", "b"], "n": 7}', 1),
    ],
)
def test_each_path_has_its_own_fields(path, body, sequences):
    assert sequences_of(path, body) == sequences


async def test_a_request_that_frees_a_result_passes_a_full_engine_and_no_other_one_does():
    engine = Engine(limit=1)
    tasks = await engine.begin()
    frees = freeing_body({"do_remote_prefill": True})
    tasks += await engine.begin(body=frees)
    assert (len(engine.heard), engine.in_flight.count) == (2, 1)
    # vLLM streams the beams of a chat
    assert (await engine.ask(frees, path="/v1/chat/completions"))[0] == 429
    await engine.end(tasks)
    assert engine.in_flight.count == 0


# over processes

SERVER = """
import sys
from pathlib import Path
from eldr.engine_limit import InFlight
in_flight = InFlight(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Server:
    """Another process that serves the same engine."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n"

    def call(self, text):
        self.process.stdin.write(f"in_flight.{text}\n")
        self.process.stdin.flush()
        return eval(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def serve(tmp_path):
    servers = []

    def serve():
        servers.append(Server(tmp_path / "in-flight"))
        return servers[-1]

    yield serve
    for server in servers:
        server.end()


@pytest.mark.process
def test_servers_of_one_engine_share_the_count(serve):
    one, other = serve(), serve()
    assert one.call("take(2, 4)")
    assert other.call("take(1, 4)")
    assert (one.call("count"), other.call("count")) == (3, 3)
    assert other.call("take(5, 4)")  # one place was free
    assert not one.call("take(1, 4)")
    other.call("give(5)")
    assert one.call("take(1, 4)")
    assert not other.call("take(1, 4)")


@pytest.mark.process
def test_a_killed_server_leaves_no_count_behind_and_one_that_stands_still_keeps_its_own(serve):
    one, other, third = serve(), serve(), serve()
    assert one.call("take(1, 4)")
    assert other.call("take(2, 4)")
    assert third.call("take(1, 4)")
    os.kill(third.process.pid, signal.SIGSTOP)
    other.end()
    assert one.call("take(1, 4)")  # it looks for the dead where it would refuse
    assert one.call("count") == 3
    another = serve()  # in the row of the one that was killed, or another
    assert another.call("count") == 3
    assert another.call("take(1, 4)")
    assert not one.call("take(1, 4)")
    os.kill(third.process.pid, signal.SIGCONT)
    third.call("give(1)")
    assert one.call("count") == 3


@pytest.mark.process
def test_a_restart_finds_nothing_in_flight(serve):
    for _ in range(3):
        servers = [serve() for _ in range(3)]
        assert [server.call("take(7, 100)") for server in servers] == [True] * 3
        for server in servers:
            server.end()
    assert serve().call("count") == 0


@pytest.mark.process
def test_servers_that_ask_at_the_same_time_never_have_more_than_the_limit(serve):
    servers = [serve() for _ in range(3)]
    for server in servers:
        server.process.stdin.write(
            "[in_flight.take(1, 5) for _ in range(2000) if not in_flight.give(0)].count(True)\n"
        )
        server.process.stdin.flush()
    assert sum(int(server.process.stdout.readline()) for server in servers) == 5


def test_a_file_that_cannot_be_had_is_named(tmp_path):
    (tmp_path / "there").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="there"):
        InFlight(tmp_path / "there")
