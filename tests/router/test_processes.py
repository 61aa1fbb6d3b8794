"""The router as users run it: its own process, simulated engines, kill -9.

The simulated engines give wrong text, without an error, when a prefill result is pulled twice or too late. So every
complete answer is compared with the only right one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from eldr import contract
from eldr.siglog import FrameReader
from eldr.sim import text
from eldr_kube.ports import free_port, free_ports
from eldr_kube.processes import end, spawn
from tests.support.processes import ELDR, Server, engine, wait_for
from tests.support.router import AUTH, Router, router

pytestmark = pytest.mark.process

_ADDRESSES = Path("/proc/net/if_inet6")
IPV6 = _ADDRESSES.exists() and "00000001 01" in _ADDRESSES.read_text()
FAST = ("--speed", "0.05")


@pytest.fixture
def two(tmp_path):
    """One prefill and two decode engines."""
    with engine("prefill", *FAST) as p, engine("decode", *FAST) as d0, engine("decode", *FAST) as d1:
        yield {"p": p, "d0": d0, "d1": d1}


def urls(engines: dict[str, Server]) -> dict[str, str]:
    return {name: server.url for name, server in engines.items()}


class Traffic:
    """Clients that ask on and on, and check every text."""

    def __init__(self, routers: list[Router], clients: int = 4) -> None:
        self.routers = routers
        self.outcomes: list[tuple[str, str]] = []
        self.wrong: list[tuple[str, str]] = []
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(clients)
        self._futures = [self._pool.submit(self._ask, i) for i in range(clients)]

    def _ask(self, client: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            prompt = f"prompt {client} {turn}"
            target = self.routers[turn % len(self.routers)]
            outcome, said = target.ask(prompt)
            if not text.completion(prompt, 16).startswith(said) or (
                outcome == "ok" and said != text.completion(prompt, 16)
            ):
                self.wrong.append((prompt, said))
            self.outcomes.append((outcome, target.url))

    def done(self, more: int) -> None:
        """Wait for so many further successes."""
        before = self.count("ok")
        wait_for(lambda: self.count("ok") >= before + more, f"{more} more answers", 90)

    def count(self, outcome: str) -> int:
        return sum(o == outcome for o, _ in self.outcomes)

    def stop(self) -> None:
        self._stop.set()
        for future in self._futures:
            future.result(90)
        self._pool.shutdown()


@pytest.mark.slow
def test_right_text_streamed_whole_and_logged(two, tmp_path):
    with router(tmp_path, urls(two)) as r:
        for i in range(6):
            assert r.ask(f"hello {i}") == ("ok", text.completion(f"hello {i}", 16))
        body = {"model": "m", "prompt": "x", "max_tokens": 5}
        answer = httpx.post(f"{r.url}/v1/completions", json=body, timeout=120)
        assert answer.json()["choices"][0]["text"] == text.completion("x", 5)
        assert answer.headers[contract.HEADER_DECODE] in ("d0", "d1")
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        said = httpx.post(f"{r.url}/v1/chat/completions", json=chat, timeout=120).json()
        assert said["choices"][0]["message"]["content"] == text.completion("user: hi", 4)
        lists = {"model": "m", "prompt": ["a", "b"], "max_tokens": 3}
        both = httpx.post(f"{r.url}/v1/completions", json=lists, timeout=120).json()["choices"]
        assert [c["text"] for c in both] == [text.completion("a", 3), text.completion("b", 3)]
        unknown = httpx.post(f"{r.url}/v1/completions", json={**body, "model": "other"}, timeout=120)
        assert unknown.status_code == 404
        wait_for(lambda: r.state()["samples"] == 8, "the records to be joined with their activations", 60)
        raw = httpx.get(r.admin + contract.PATH_SIGLOG, headers=AUTH, timeout=120).content
        records = list(FrameReader().feed(raw))
        assert all(record.exact and record.decode is not None for record in records)
        assert r.in_flight() == 0


@pytest.mark.slow
def test_a_decode_engine_killed_during_traffic(two, tmp_path):
    with router(tmp_path, urls(two)) as r:
        traffic = Traffic([r])
        traffic.done(8)
        two["d0"].process.kill()
        traffic.done(12)
        traffic.stop()
        assert not traffic.wrong, "an engine decoded from somebody else's blocks"
        assert {outcome for outcome, _ in traffic.outcomes} <= {"ok", "error"}
        assert traffic.count("error") <= 4, "only streams that had begun may break"
        wait_for(lambda: r.in_flight() == 0, "leases to return")
        decode = {e["name"]: e["healthy"] for e in r.state()["decode"]}
        assert decode["d1"]


@pytest.mark.slow
def test_a_decode_engine_killed_between_pull_and_first_byte(tmp_path):
    """The blocks are gone: only a second prefill gives right tokens."""
    never, soon = (
        (*FAST, "--first-step-delay", seconds) for seconds in ("1000", "2")
    )  # soon: both are there at once
    with engine("prefill", *FAST) as p, engine("decode", *never) as d0, engine("decode", *soon) as d1:

        def metric(server: Server, name: str) -> float:
            lines = httpx.get(f"{server.url}/metrics", timeout=120).text.splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))

        with router(tmp_path, {"p": p.url, "d0": d0.url, "d1": d1.url}, policy="JSQ") as r:
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                prompts = ["first", "second"]
                answers = [pool.submit(r.ask, prompt) for prompt in prompts]  # JSQ: one of them waits at d0
                wait_for(
                    lambda: next(e for e in r.state()["decode"] if e["name"] == "d0")["in_flight"],
                    "d0 to have one",
                )
                wait_for(lambda: metric(d0, "vllm:prompt_tokens_total"), "d0 to pull")
                d0.process.kill()
                for prompt, answer in zip(prompts, answers, strict=True):
                    assert answer.result(90) == ("ok", text.completion(prompt, 16))
            assert r.counter("retries") == 1
            assert r.counter("requests") == 2
            assert metric(p, "vllm:request_success_total") == 3, "the prompt was prefilled again"


@pytest.mark.slow
def test_a_chat_whose_pull_fails_never_shows_it(tmp_path):
    """The engine names the role of a streamed chat before its error; the client sees one answer, not the start of two."""
    with (
        engine("prefill", *FAST) as p,
        engine("decode", *FAST) as d,
        router(tmp_path, {"p": p.url, "d": d.url}) as r,
    ):
        d.process.send_signal(signal.SIGSTOP)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            url = f"{r.url}/v1/chat/completions"
            answer = pool.submit(httpx.post, url, json={**body, "stream": True}, timeout=120)
            wait_for(lambda: r.loads()["d"], "the prefill to be answered")
            p.process.kill()
            p.process.wait()
            d.process.send_signal(signal.SIGCONT)
            got = answer.result(90).text
        assert "error" not in got
        assert got.count('"assistant"') == 1
        assert got.endswith("data: [DONE]\n\n")
        assert r.counter("retries", leg="decode", cause="error_event") == 1


@pytest.mark.slow
def test_a_prefill_engine_killed_during_traffic(tmp_path):
    with (
        engine("prefill", *FAST) as p0,
        engine("prefill", *FAST) as p1,
        engine("decode", *FAST) as d,
        router(tmp_path, {"p0": p0.url, "p1": p1.url, "d": d.url}) as r,
    ):
        traffic = Traffic([r])
        traffic.done(8)
        p0.process.kill()
        traffic.done(12)
        traffic.stop()
        assert not traffic.wrong
        assert {outcome for outcome, _ in traffic.outcomes} == {"ok"}, (
            "nothing was forwarded yet: all is retried"
        )


@pytest.mark.slow
def test_two_routers_one_killed(two, tmp_path):
    with contextlib.ExitStack() as stack:
        ports = free_ports(2)
        first, second = (
            stack.enter_context(
                router(tmp_path / name, urls(two), "--peer", f"http://127.0.0.1:{other}", admin_port=own)
            )
            for name, own, other in (("a", *ports), ("b", *reversed(ports)))
        )
        traffic = Traffic([first, second])
        traffic.done(8)
        first.process.kill()
        before = sum(o == "ok" and url == second.url for o, url in traffic.outcomes)
        wait_for(
            lambda: sum(o == "ok" and url == second.url for o, url in traffic.outcomes) >= before + 10,
            "the other router to go on",
            90,
        )
        traffic.stop()
        assert not traffic.wrong
        assert {o for o, url in traffic.outcomes if url == second.url} == {"ok"}
        wait_for(
            lambda: all(e["total"] == 0 for e in second.state()["decode"]),
            "the engines to report that nothing is in flight",
        )


@pytest.mark.slow
def test_sigterm_finishes_streams_and_exits_0(tmp_path):
    with (
        engine("prefill", *FAST) as p,
        engine("decode", "--speed", "2") as d,  # a stream that outlasts the lame duck
        router(tmp_path, {"p": p.url, "d": d.url}, "--drain-seconds", "60") as r,
    ):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(r.ask, "long", 200)
            wait_for(lambda: r.state()["decode"][0]["in_flight"], "the stream to start")
            r.process.send_signal(signal.SIGTERM)
            wait_for(
                lambda: httpx.get(f"{r.admin}/metrics", timeout=120).text.find("eldr_router_ready 0.0") >= 0,
                "not ready",
            )
            assert answer.result(90) == ("ok", text.completion("long", 200))
        assert r.process.wait(30) == 0


@pytest.mark.slow
def test_a_second_sigterm_ends_it_at_once(tmp_path):
    with (
        engine("prefill", *FAST) as p,
        engine("decode", *FAST, "--first-step-delay", "1000") as d,
        router(tmp_path, {"p": p.url, "d": d.url}, "--drain-seconds", "600") as r,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(r.ask, "x")
        wait_for(lambda: r.state()["decode"][0]["in_flight"], "the request to wait")
        r.process.terminate()
        wait_for(lambda: r.state()["draining"], "the drain")
        r.process.terminate()
        assert r.process.wait(30) == 0
        assert answer.result(30)[0] == "cut"


@pytest.mark.slow
def test_short_leases_never_give_wrong_text(two, tmp_path):
    """With leases that hardly suffice the router may refuse, but must not decode from expired blocks.

    It is told less than the engine keeps, for a busy machine may hold a request longer than its margin.
    """
    with (
        engine("prefill", *FAST, "--lease-seconds", "6") as p,
        router(tmp_path, {**urls(two), "p": p.url}, lease_seconds=2) as r,
    ):
        traffic = Traffic([r], clients=6)
        traffic.done(30)
        traffic.stop()
        assert not traffic.wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--workers"),
        (["--source", "kubernetes"], "--namespace"),
        (["--workers", "gone"], "File 'gone' does not exist"),
    ],
)
def test_settings_that_cannot_work(arguments, message, tmp_path):
    (tmp_path / "there").write_text("{}")
    env = {key: value for key, value in os.environ.items() if key != contract.ENV_ADMIN_TOKEN}
    done = subprocess.run(
        [str(ELDR), "router", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not IPV6, reason="needs ::1: enable IPv6 on this machine's loopback")
def test_everything_speaks_ipv6(tmp_path):
    with contextlib.ExitStack() as stack:
        engines = {
            role[0]: stack.enter_context(engine(role, *FAST, host="::1"))
            for role in (contract.ROLE_PREFILL, contract.ROLE_DECODE)
        }
        ports = free_ports(2)
        routers = [
            stack.enter_context(
                router(
                    tmp_path / name,
                    urls(engines),
                    "--peer",
                    f"http://[::1]:{other}",
                    admin_port=own,
                    host="::1",
                )
            )
            for name, own, other in (("a", *ports), ("b", *reversed(ports)))
        ]
        for r in routers:
            assert r.ask("hello") == ("ok", text.completion("hello", 16))
            assert r.counter("whole") == 0, "the KV was pulled"
            wait_for(lambda r=r: r.state()["samples"] == 1, "its record", 60)
            wait_for(lambda r=r: all(e["reports"] for e in r.state()["decode"]), "the engine's report", 60)
            wait_for(lambda r=r: r.state()["peers"][0]["age"] is not None, "the other router", 60)


@pytest.mark.slow
def test_a_port_that_is_taken(tmp_path):
    with engine("decode", *FAST) as d:
        port = d.url.rsplit(":", 1)[1]
        (tmp_path / "w").write_text("{}")
        command = [str(ELDR), "router", "--workers", str(tmp_path / "w"), "--port", port, "--admin-port", "0"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert "in use" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_clients_are_served_on_loopback_too_by_the_first_of_a_machine(tmp_path):
    """As in pods: each has an address of its own, and kubectl port-forward connects to loopback."""
    (tmp_path / "w").write_text("{}")
    port = free_port()

    def start(host: str) -> subprocess.Popen[bytes]:
        command = [str(ELDR), "router", "--workers", str(tmp_path / "w"), f"--host={host}", f"--port={port}"]
        command += ["--admin-host=127.0.0.1", "--admin-port=0"]
        env = {**os.environ, "ELDR_ROUTER_LOOPBACK": "true"}
        process = spawn(command, log=tmp_path / host, env=env)
        wait_for(lambda: healthy(host), f"{host} to answer", show=(tmp_path / host).read_text)
        return process

    def healthy(host: str) -> bool:
        try:
            return httpx.get(f"http://{host}:{port}/health").is_success
        except httpx.TransportError:
            return False

    first = start("127.8.0.1")
    try:
        assert healthy("127.0.0.1")
        second = start("127.8.0.2")
        try:
            assert "clients: not on 127.0.0.1:" in (tmp_path / "127.8.0.2").read_text()
            assert healthy("127.8.0.1")
        finally:
            end(second)
    finally:
        end(first)
    assert not healthy("127.0.0.1")


def test_options_come_from_the_environment(tmp_path):
    env = {**os.environ, "ELDR_ROUTER_SOURCE": "nonsense"}
    done = subprocess.run(
        [str(ELDR), "router"], check=False, capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 2
    assert "nonsense" in done.stderr
