"""API keys and TLS: clients with a key get answers, and what changes on disk is in effect without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import ssl
import sys
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from eldr import contract
from eldr.smoke.request import RequestError
from eldr.smoke.request import ask as smoke
from eldr_router.net import handshake
from eldr_router.settings import Settings, SettingsError
from eldr_router.sources import secrets
from tests.router.conftest import Router, until
from tests.support.clients import bearer, certificate
from tests.support.files import put


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(secrets, "POLL_SECONDS", 0.02)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir()
    put(folder / "alice", b"key-of-alice\n")
    put(folder / "bob", b"key-of-bob")
    put(folder / "..data", b"what a kubelet keeps here")
    return folder


async def status(router: Router, headers: dict[str, str] | None = None, path: str = "/v1/completions") -> int:
    return (await router.post(path, headers, messages=[{"role": "user", "content": "x"}])).status_code


async def test_whoever_knows_a_key_is_served(start, keys):
    async with start("p0", "d0", settings={"api_keys": keys}) as router:
        assert await status(router, bearer("key-of-alice")) == 200
        assert await status(router, {"authorization": "bearer  key-of-bob"}) == 200
        assert await status(router, {"x-api-key": "key-of-bob"}) == 200
        for engine in ("p0", "d0"):
            first = router[engine].requests[0].headers
            assert first["authorization"] == "Bearer key-of-alice", "engines may ask for keys, too"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        bearer("key-of-eve"),
        bearer("key-of-alice2"),
        bearer("what a kubelet keeps here"),
        {"authorization": "Basic key-of-alice"},
        {"authorization": "key-of-alice"},
        {"x-api-key": ""},
    ],
)
async def test_nobody_else_is(start, keys, headers):
    async with start("p0", "d0", settings={"api_keys": keys}) as router:
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/nothing"):
            assert await status(router, headers, path) == 401
        models = await router.client.get(router.url + "/v1/models", headers=headers)
        assert models.status_code == 401
        assert models.headers["www-authenticate"] == "Bearer"
        assert models.json()["error"]["code"] == "invalid_api_key"
        assert "key-of" not in models.text
        assert router.counter("unauthorized") == 4
        assert not router["p0"].requests
        for path in ("/health", "/ready"):
            assert (await router.client.get(router.url + path)).status_code == 200


@pytest.mark.parametrize("expects", ["", "expect: 100-continue\r\n"], ids=["sends at once", "asks first"])
async def test_who_has_no_key_sends_no_body(start, keys, expects):
    async with start("p0", "d0", settings={"api_keys": keys}) as router:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(router.url).port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n{expects}\r\n"
        writer.write(head.encode() + (b"" if expects else b"x" * 1000))
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 401 "), "before the body, and no 100 Continue"
        assert b"www-authenticate: Bearer" in answer
        assert router.app.clients.budget.held == 0
        assert await status(router, bearer("key-of-alice")) == 200


async def test_keys_change_without_a_restart(start, keys, caplog):
    async with start("p0", "d0", settings={"api_keys": keys}) as router:
        put(keys / "carol", b"key-of-carol")
        (keys / "alice").unlink()
        before = router.app.secrets.keys
        await until(lambda: router.app.secrets.keys != before, "the keys to be read again")
        assert await status(router, bearer("key-of-alice")) == 401
        assert await status(router, bearer("key-of-carol")) == 200
        put(keys / "carol", b"two words")
        await until(lambda: "stays in effect" in caplog.text, "the problem to be told")
        assert await status(router, bearer("key-of-carol")) == 200
        assert "'carol' must hold one key" in caplog.text
        await asyncio.sleep(0.2)
        assert caplog.text.count("stays in effect") == 1


def test_what_a_kubelet_puts_beside_keys_is_none(tmp_path):
    for name in (".hidden", "key"):
        put(tmp_path / name, f"key-of-{name}".encode())
    assert len(secrets.read_keys(tmp_path)) == 1


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two words", b"\xff\xfe", b"x" * 5000])
def test_a_folder_without_a_good_key(tmp_path, content):
    folder = tmp_path / "keys"
    if content is not None:
        folder.mkdir()
        put(folder / "one", content)
    with pytest.raises(SettingsError, match="--api-keys"):
        secrets.read_keys(folder)


def shown(port: int) -> bytes:
    """The certificate that a port shows."""
    return ssl.get_server_certificate(("127.0.0.1", port)).encode()


async def test_clients_speak_tls(start, keys, tmp_path, caplog):
    path = certificate(tmp_path / "tls", "first")
    settings = {"tls_certificate": path, "tls_key": path.with_name("tls.key"), "api_keys": keys}
    async with start("p0", "d0", settings=settings) as router:
        port = router.app.addresses[0][1]
        ca = path.with_name("ca.crt")
        trust = ssl.create_default_context(cafile=str(ca))
        # as `eldr smoke` does
        with pytest.raises(RequestError, match="one two three"):  # these engines count no tokens
            await asyncio.to_thread(smoke, f"https://localhost:{port}", "m", 30, key="key-of-bob", ca=ca)
        with pytest.raises(RequestError, match="status 401"):
            await asyncio.to_thread(smoke, f"https://localhost:{port}", "m", 30, ca=ca)
        async with httpx.AsyncClient(verify=trust, timeout=120, headers=bearer("key-of-alice")) as client:
            body = {"model": "m", "prompt": "hello", "stream": True}
            whole = await client.post(f"https://localhost:{port}/v1/completions", json=body)
            assert whole.status_code == 200
            assert whole.text.endswith("data: [DONE]\n\n")
            first = await asyncio.to_thread(shown, port)
            certificate(tmp_path / "tls", "second")
            while await asyncio.to_thread(shown, port) == first:
                await asyncio.sleep(0.02)
            kept = await client.post(f"https://localhost:{port}/v1/completions", json=body)
            assert kept.status_code == 200, "an open connection goes on"
        put(path, b"no certificate")
        await until(lambda: "stays in effect" in caplog.text, "the problem to be told")
        assert await asyncio.to_thread(shown, port) not in (b"", first), "what was read before is in effect"
        with contextlib.suppress(httpx.TransportError):
            plain = await router.client.get(f"http://127.0.0.1:{port}/health")
            raise AssertionError(f"plain HTTP got {plain.status_code}")


async def test_a_link_to_nothing_beside_a_key_hides_no_change(start, keys):
    (keys / "gone").symlink_to(keys / "nowhere")
    async with start("p0", "d0", settings={"api_keys": keys}) as router:
        before = router.app.secrets.keys
        put(keys / "carol", b"key-of-carol")
        await until(lambda: router.app.secrets.keys != before, "the keys to be read again")
        assert await status(router, bearer("key-of-carol")) == 200


async def test_clients_that_agree_on_no_tls_take_nobodys_place(start, tmp_path, monkeypatch):
    """Each holds a descriptor: beyond what there is for clients they are cut, and then given up."""
    path = certificate(tmp_path / "tls", "first")
    trust = ssl.create_default_context(cafile=str(path.with_name("ca.crt")))
    settings = {"tls_certificate": path, "tls_key": path.with_name("tls.key")}
    async with start("p0", "d0", settings=settings) as router, contextlib.AsyncExitStack() as stack:
        host, port = router.app.addresses[0]
        url, body = f"https://localhost:{port}/v1/completions", {"model": "m", "prompt": "hello"}
        client = await stack.enter_async_context(httpx.AsyncClient(verify=trust, timeout=120))
        assert (await client.post(url, json=body)).status_code == 200
        clients = router.app.clients
        clients.max_connections, clients.max_refused = 4, 2
        silent = [await asyncio.open_connection(host, port) for _ in range(20)]
        for _, writer in silent:
            stack.callback(writer.close)
        cut = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
        await until(lambda: sum(one.done() for one in cut) == 15, "those beyond the limit to be cut")
        assert len(clients.handshakes) == 5
        assert (await client.post(url, json=body)).status_code == 200, "who is connected is served"
        for _, writer in silent:
            writer.close()
        await until(lambda: not clients.handshakes, "the handshakes to be over")
        async with httpx.AsyncClient(verify=trust, timeout=120) as other:
            assert (await other.post(url, json=body)).status_code == 200
        monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.2)
        reader, writer = await asyncio.open_connection(host, port)
        stack.callback(writer.close)
        assert await reader.read() == b"", "who says nothing is given up"


@pytest.mark.process
def test_a_key_with_a_passphrase_asks_nobody_for_it(tmp_path):
    """Least of all a terminal, while all clients wait."""
    path = certificate(tmp_path, "one")
    key = path.with_name("tls.key")
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    hidden = serialization.BestAvailableEncryption(b"secret")
    put(key, plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))
    code = "import sys, ssl; from pathlib import Path; from eldr_router.sources.secrets import _read_pair\n"
    code += "_read_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), 'tls', Path(sys.argv[1]), Path(sys.argv[2]))"
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", code, str(path), str(key)])
    said = b""
    try:
        while b"SettingsError" not in said and b"pass phrase" not in said:
            said += os.read(terminal, 4096)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
    assert b"pass phrase" not in said


def test_tls_settings_that_cannot_work(tmp_path):
    path = certificate(tmp_path / "one", "one")
    other = certificate(tmp_path / "two", "two").with_name("tls.key")
    workers = tmp_path / "w"
    with pytest.raises(SettingsError, match="give both"):
        Settings(workers=workers, tls_certificate=path)
    for key in (other, tmp_path / "nothing"):
        with pytest.raises(SettingsError, match=r"--tls-certificate .*--tls-key"):
            secrets.Secrets(Settings(workers=workers, tls_certificate=path, tls_key=key))


async def test_another_admin_token_is_in_effect_without_a_restart(start, tmp_path, caplog):
    token = tmp_path / "admin" / "token"
    token.parent.mkdir()
    put(token, b"first\n")
    settings = {"admin_token": "ignored", "admin_token_file": token}
    async with start("p0", "d0", settings=settings) as router:

        async def state(word: str) -> int:
            url = f"{router.admin}{contract.PATH_STATE}"
            return (await router.client.get(url, headers=bearer(word))).status_code

        assert [await state(word) for word in ("first", "ignored")] == [200, 401]
        put(token, b"second")
        await until(lambda: router.app.secrets.admin_token == "second", "the token to be read again")
        assert [await state(word) for word in ("first", "second")] == [401, 200]
        put(token, b"")
        await until(lambda: "stays in effect" in caplog.text, "the problem to be logged")
        assert await state("second") == 200
