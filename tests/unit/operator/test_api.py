"""How the API server is reached."""

import pytest

from eldr.credentials import _proxy_of
from eldr_operator.errors import ApiUnavailableError, NoClusterError, UnreadableError
from eldr_operator.kube.api import Api, _refusal, connect
from tests.support import kubeconfig

SERVER = "https://10.1.2.3:6443"
PROXY = "http://10.9.9.9:3128"


@pytest.mark.parametrize(
    ("environment", "of_the_file", "proxy"),
    [
        ({}, None, None),
        ({"HTTPS_PROXY": PROXY}, None, PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.1.2.3"}, None, None),
        ({"HTTP_PROXY": PROXY}, None, None),
        ({"HTTPS_PROXY": PROXY}, "http://10.8.8.8:1", "http://10.8.8.8:1"),
    ],
)
async def test_a_proxy_is_looked_up_once(environment, of_the_file, proxy, tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cluster = {"server": SERVER} | ({"proxy-url": of_the_file} if of_the_file else {})
    kubeconfig.write(tmp_path / "config", **cluster)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    async with connect() as api:
        rest = api._client.rest_client
        assert rest.proxy == proxy
        session = rest._create_pool_manager()
        assert not session.trust_env
        await session.close()


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{", "clusters: 7", "\0", "current-context: gone", b"\x80\xff"]
)
async def test_without_a_cluster_it_says_what_to_set(text, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "config"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(NoClusterError, match=r"^no cluster: .+; set KUBECONFIG"):
        async with connect():
            pass


@pytest.mark.parametrize("text", ['{"a":' * 1200 + "1" + "}" * 1200, "<html>", b"\xff"])
async def test_an_answer_that_cannot_be_read_is_told_as_such(text):
    class Client:
        status, data = 200, text if isinstance(text, bytes) else text.encode()

        async def param_serialize(self, *_, **__):
            return ()

        async def call_api(self, **_):
            return self

        async def read(self):
            """It is there."""

    with pytest.raises(UnreadableError, match=r"^GET /api: the answer cannot be read: "):
        await Api(Client()).request("GET", "/api")


@pytest.mark.parametrize(("no_proxy", "expected"), [("fd00::1", None), ("fd00::2", PROXY), ("", PROXY)])
def test_addresses_of_version_6_are_known_without_brackets(no_proxy, expected, monkeypatch):
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv("no_proxy", no_proxy)
    assert _proxy_of("https://[fd00::1]:443") == expected


async def test_a_list_comes_page_by_page_and_only_what_is_wanted_of_it_is_kept(monkeypatch):
    pages = {
        None: {
            "items": [{"n": 1}, {"n": 2}],
            "metadata": {"resourceVersion": "7", "continue": "a"},
        },
        "a": {"items": [{"n": 3}], "metadata": {"resourceVersion": "7", "continue": "b"}},
        "b": {"items": None, "metadata": {"resourceVersion": "7"}},
    }
    asked = []

    async def request(self, method, url, *, query, accept):
        asked.append(dict(query))
        return pages[dict(query).get("continue")]

    monkeypatch.setattr(Api, "request", request)
    found, version = await Api(None).list("Pod", None, labels="l", keep=lambda live: live["n"])
    assert (found, version) == ([1, 2, 3], 7)
    assert [(one["labelSelector"], one.get("continue")) for one in asked] == [
        ("l", None),
        ("l", "a"),
        ("l", "b"),
    ]
    assert all(one["limit"] for one in asked)


def test_a_list_that_took_too_long_is_asked_for_again_and_not_refused():
    assert isinstance(_refusal(410, '{"reason": "Expired", "message": "continue"}'), ApiUnavailableError)
