"""The programs of a control plane: taken from ``KUBEBUILDER_ASSETS``, or built and fetched once into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from eldr_kube.packages import CLIENTS, REQUIREMENTS, BinariesUnavailableError, Say, fetch_clients
from eldr_kube.servers import ENDPOINT, ETCD, KUBERNETES, SERVERS, SOURCE, build, link

ALL: Final = (ETCD, *SERVERS, ENDPOINT, *CLIENTS)


def user_cache() -> Path:
    """Return our folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eldr"


def cache_folder() -> Path:
    """Return the folder that keeps what was made from these very sources and requirements."""
    made_from = hashlib.sha256()
    for folder in (SOURCE, REQUIREMENTS):
        for path in sorted(folder.iterdir()):
            made_from.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return user_cache() / "kube" / f"{KUBERNETES}-{made_from.hexdigest()[:12]}"


def say_on_stderr(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def binaries(say: Say = say_on_stderr) -> Path:
    """Return a folder with etcd, the three servers, a node's endpoint, kubectl and helm, making what is missing.

    What ``KUBEBUILDER_ASSETS`` offers (the layout of ``setup-envtest``) comes from there, the rest from the cache.

    Raises
    ------
    BinariesUnavailableError
        If something cannot be built or fetched.
    """
    given = _assets()
    lacking = [name for name in ALL if name not in given]
    cache = _filled_cache(lacking, say)
    if not given:
        return cache
    key = hashlib.sha256("\n".join(map(str, given.values())).encode()).hexdigest()[:12]
    folder = cache.parent / f"assets-{key}"
    folder.mkdir(exist_ok=True)
    for name in ALL:
        link(folder / name, given.get(name, cache / name))
    return folder


def clients(say: Say = say_on_stderr) -> Path:
    """Return a folder with kubectl and helm, which need no Go; BinariesUnavailableError if they cannot be fetched."""
    return _filled_cache(list(CLIENTS), say)


def _assets() -> dict[str, Path]:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    offered = {name: Path(folder).absolute() / name for name in (ETCD, *SERVERS, "kubectl")}
    found = {name: path for name, path in offered.items() if path.exists()}
    if not found:
        raise BinariesUnavailableError(
            f"KUBEBUILDER_ASSETS={folder} holds none of {', '.join(offered)}; unset it, or point it at a folder with them"
        )
    return found


def _filled_cache(names: list[str], say: Say) -> Path:
    folder = cache_folder() / "bin"
    if all((folder / name).exists() for name in names):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder.parent / "lock"):
        missing = [name for name in names if not (folder / name).exists()]
        if servers := [name for name in missing if name in (ETCD, *SERVERS)]:
            if assets := os.environ.get("KUBEBUILDER_ASSETS"):
                say(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(servers)}, which a cluster needs too")
            build(folder, servers, say)
        if ENDPOINT in missing:
            build(folder, [ENDPOINT], say)
        if any(name in CLIENTS for name in missing):
            fetch_clients(folder, say)
    return folder


@contextmanager
def lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
