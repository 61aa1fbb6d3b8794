"""The content of volumes and how it is swapped."""

from __future__ import annotations

from pathlib import Path

import pytest

from eldr_kube.agent import sources
from eldr_kube.agent.environment import MissingSourceError
from eldr_kube.agent.sources import File, choose
from eldr_kube.agent.volumes import swap

DATA = {"a": b"A", "b": b"B"}


def shown(folder: Path) -> dict[str, str]:
    names = [path for path in folder.iterdir() if not path.name.startswith("..")]
    return {path.name: path.read_text() for path in names if path.is_file()}


def test_swap_replaces_everything_and_leaves_one_version(tmp_path: Path):
    swap(tmp_path, {"a": File(b"1"), "deep/er": File(b"2", 0o400)})
    assert shown(tmp_path) == {"a": "1"}
    assert (tmp_path / "deep/er").stat().st_mode & 0o777 == 0o400
    swap(tmp_path, {"a": File(b"3"), "c": File(b"4")})
    assert shown(tmp_path) == {"a": "3", "c": "4"}
    versions = [path for path in tmp_path.glob("..*") if path.name != "..data"]
    assert len(versions) == 1


@pytest.mark.parametrize(
    ("data", "wanted", "message"),
    [
        (None, {"name": "c"}, "ConfigMap 'c' not found"),
        (DATA, {"name": "c", "items": [{"key": "z", "path": "z"}]}, "ConfigMap 'c' has no key 'z'"),
    ],
)
def test_what_is_missing_is_named_unless_optional(data: dict | None, wanted: dict, message: str):
    with pytest.raises(MissingSourceError, match=message):
        choose(data, "ConfigMap", wanted, 0o644)
    assert choose(data, "ConfigMap", {**wanted, "optional": True}, 0o644) == {}


class FakeApi:
    """Issues numbered tokens."""

    def __init__(self) -> None:
        self.issued: list[dict] = []

    async def call(self, method: str, path: str, body: dict | None = None) -> dict:
        assert (method, path) == ("POST", "/api/v1/namespaces/n/serviceaccounts/reader/token")
        assert body is not None
        self.issued.append(body["spec"])
        return {"status": {"token": f"token-{len(self.issued)}"}}


async def test_tokens_are_bound_to_the_pod_and_renewed_in_time(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr(sources.time, "monotonic", lambda: now)
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"serviceAccountName": "reader"}}
    wanted = {"path": "token", "expirationSeconds": 1000, "audience": "eldr"}
    volume = {"name": "t", "projected": {"sources": [{"serviceAccountToken": wanted}]}}
    api = FakeApi()
    of_pod = sources.Sources(api, pod, "127.1.2.3")
    assert of_pod.renewal is None
    assert (await of_pod.files(volume))["token"].content == b"token-1"
    assert api.issued[0]["boundObjectRef"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    assert (api.issued[0]["audiences"], api.issued[0]["expirationSeconds"]) == (["eldr"], 1000)
    assert of_pod.renewal == 800
    now += 799
    assert (await of_pod.files(volume))["token"].content == b"token-1"
    now += 1
    assert of_pod.renewal == 0
    assert (await of_pod.files(volume))["token"].content == b"token-2"
