"""The wheel as a stranger installs it: each extra in an environment of its own, each command with its extra and without."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

from eldr.cli import COMMANDS
from eldr_kube.ports import free_ports
from eldr_kube.processes import end, spawn
from tests.support.processes import wait_for

pytestmark = [pytest.mark.artifacts, pytest.mark.process, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
UV = ROOT / ".venv" / "bin" / "uv"
EMPTY = str(Path(__file__).parent)
"""A folder without a signature log."""
MOST_MEGABYTES = {"wheel": 3, "sdist": 3}


def run(*command: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KUBECONFIG")}
    return subprocess.run(
        words, capture_output=True, text=True, env={**bare, **(env or {})}, check=False, cwd="/"
    )


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist."""
    out = tmp_path_factory.mktemp("dist")
    done = run(UV, "build", "--quiet", "--out-dir", out, "--python", sys.executable, ROOT)
    assert done.returncode == 0, done.stderr
    return out


def one(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


@pytest.fixture(scope="session")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory):
    """Return a function that installs the wheel with an extra, in versions of the lock, and returns the folder of its programs."""
    made: dict[str, Path] = {}

    def install(extra: str) -> Path:
        if extra not in made:
            folder = tmp_path_factory.mktemp(f"extra-{extra or 'none'}")
            wheel = f"{one(dist, '*.whl')}{f'[{extra}]' if extra else ''}"
            for command in (
                ("venv", "--quiet", "--python", sys.executable, folder),
                ("pip", "install", "--quiet", "--python", folder, "--constraint", constraints(), wheel),
            ):
                done = run(UV, *command)
                assert done.returncode == 0, done.stderr
            made[extra] = folder / "bin"
        return made[extra]

    def constraints() -> Path:
        found = tmp_path_factory.getbasetemp() / "constraints.txt"
        lines = (ROOT / "requirements.lock").read_text().splitlines()
        found.write_text(
            "\n".join(line.removesuffix(" \\") for line in lines if line and line[0] not in " #")
        )
        return found

    return install


def test_the_archives_hold_what_runs_and_little_else(dist):
    wheel, sdist = one(dist, "*.whl"), one(dist, "*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"eldr", "eldr_operator", "eldr_router"}
    with tarfile.open(sdist) as archive:
        held = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert not held & {"tests", "hack", "charts", ".ci"}
    assert wheel.stat().st_size < MOST_MEGABYTES["wheel"] << 20
    assert sdist.stat().st_size < MOST_MEGABYTES["sdist"] << 20


def test_without_extras_each_command_says_what_to_install(installed):
    eldr = installed("") / "eldr"
    assert run(eldr, "--help").returncode == 0
    for name, found in COMMANDS.items():
        done = run(eldr, name, *ARGUMENTS.get(name, ("--help",)))
        if found.extra:
            assert (done.returncode, f"pipx install '.[{found.extra}]'" in done.stderr) == (1, True), name
            assert len(done.stderr.splitlines()) == 1, done.stderr
        else:
            assert done.returncode == 0, done.stderr


ARGUMENTS = {
    "router": ("--workers", "/dev/null"),
    "fit": ("log", EMPTY, "--model=m", "--k=2"),
}
"""Where `--help` imports less than the command needs."""


@pytest.mark.parametrize("name", [name for name, found in COMMANDS.items() if found.extra])
def test_each_command_runs_with_its_extra(installed, name, tmp_path):
    bin_folder = installed(COMMANDS[name].extra)
    done = run(bin_folder / "eldr", name, "--help")
    assert done.returncode == 0, done.stderr
    env = {"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    for arguments in RUNS[name]:
        done = run(bin_folder / "eldr", name, *arguments, env=env)
        assert "Traceback" not in done.stderr, done.stderr
        assert "pip install" not in done.stderr, done.stderr


RUNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "router": ((),),
    "operator": (("--all-namespaces",),),
    "fit": (("log", EMPTY, "--model=m", "--k=2"), ("job", "--help")),
    "simulate": (("--log", EMPTY), ("--from-cluster", "x")),
    "status": (("x",),),
    "compare": (("x", "--against", "JSQ"),),
    "doctor": (("x",),),
    "rollout": (("status", "x"),),
    "smoke": (("x",),),
    "engine-sim": (("--role", "nothing"),),
}
"""What ends soon, mostly with an error that says what is missing."""


@pytest.mark.parametrize("name", ["router", "engine-sim"])
def test_servers_of_the_wheel_serve(installed, name, tmp_path):
    port, admin = free_ports(2)
    (tmp_path / "workers.yaml").write_text("{}")
    of_its_own = {
        "router": ("--workers", str(tmp_path / "workers.yaml"), f"--admin-port={admin}"),
        "engine-sim": ("--role=decode",),
    }
    command = [str(installed(COMMANDS[name].extra) / "eldr"), name, f"--port={port}", *of_its_own[name]]
    log = tmp_path / "log"
    process = spawn(command, log=log, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    try:
        wait_for(lambda: answers(port), f"{name} to answer", show=log.read_text)
    finally:
        end(process)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False
