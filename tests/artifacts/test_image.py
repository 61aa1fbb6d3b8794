"""The image as it is released: what the archive holds, and a whole deployment, fit included, that runs from it alone."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from eldr import contract
from eldr.cli import COMMANDS
from eldr_image import debian, wheels
from eldr_kube.agent.images import Image
from eldr_kube.binaries import BinariesUnavailableError, binaries
from eldr_kube.cluster import Cluster
from tests.support.kube import Kube
from tests.support.processes import wait_for

pytestmark = [pytest.mark.artifacts, pytest.mark.process, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
VERSION = version("eldr")
EM_AARCH64 = 183
MOST_MEGABYTES = 160
"""Compressed, of one architecture."""
ARBITRARY = "1000680000:0"
"""As OpenShift runs containers: a user that no file names, of group root."""


def build(out: Path, *options: str) -> None:
    command = [sys.executable, "-m", "eldr_image", "build", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if "dpkg-deb is missing" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build for this machine, and return the folder."""
    out = tmp_path_factory.mktemp("image")
    build(out)
    return out


class Archive:
    """An OCI archive that is read by the specification: every blob by its digest."""

    def __init__(self, file: tarfile.TarFile) -> None:
        self._file = file
        self.top = self._json("index.json")
        self.index = self.follow(self.top["manifests"][0])

    def _read(self, name: str) -> bytes:
        found = self._file.extractfile(name)
        assert found is not None
        return found.read()

    def _json(self, name: str) -> Any:
        return json.loads(self._read(name))

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        algorithm, digest = descriptor["digest"].split(":")
        content = self._read(f"blobs/{algorithm}/{digest}")
        assert hashlib.sha256(content).hexdigest() == digest
        assert len(content) == descriptor["size"]
        return content

    def follow(self, descriptor: dict[str, Any]) -> Any:
        return json.loads(self.blob(descriptor))


@pytest.fixture(scope="session")
def archive(built) -> Iterator[Archive]:
    (file,) = built.glob("*.oci.tar")
    with tarfile.open(file) as opened:
        yield Archive(opened)


@pytest.fixture(scope="session")
def root(archive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the image, layer by layer."""
    folder = tmp_path_factory.mktemp("root")
    manifest = archive.follow(archive.index["manifests"][0])
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(archive.blob(layer)), mode="r:gz") as packed:
            packed.extractall(folder, filter="fully_trusted")
    folder.chmod(0o755)
    return folder


def test_the_archive_is_an_image_of_this_release(archive):
    (image,) = archive.index["manifests"]
    manifest = archive.follow(image)
    config = archive.follow(manifest["config"])
    assert archive.top["manifests"][0]["annotations"] == {"org.opencontainers.image.ref.name": VERSION}
    assert image["platform"] == {"architecture": wheels.host(), "os": "linux"}
    assert config["config"]["User"].split(":")[0].isdigit(), (
        "a name tells Kubernetes nothing about runAsNonRoot"
    )
    assert int(config["config"]["User"].split(":")[0]) > 0
    assert config["config"]["Entrypoint"] == ["eldr"]
    assert len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]) == 3
    assert sum(layer["size"] for layer in manifest["layers"]) < MOST_MEGABYTES << 20


def test_it_holds_what_runs_and_nothing_to_break_in_with(root):
    names = {path.name for path in (root / wheels.PACKAGES).iterdir()}
    assert {"eldr", "eldr_operator", "eldr_router", "numpy", "kopf"} <= names
    assert not names & {"pytest", "hatchling", "uv", "mypy", "pip", "cyclonedx", "eldr_kube"}
    assert {path.name for path in (root / "usr/bin").iterdir()} == {f"python{wheels.PYTHON}"}
    dangerous = [
        path
        for path in root.rglob("*")
        if not path.is_symlink() and path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)
    ]
    assert sorted(dangerous) == [root / "tmp", root / "var/tmp"]
    assert not list(root.rglob("direct_url.json")), "they name folders of the machine that built it"
    assert (root / "usr/share/doc/libc6/copyright").exists()


def test_every_package_is_locked_and_in_the_bill(built, archive):
    (file,) = built.glob("*.cdx.json")
    text = file.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    listed = {(each["name"], each["version"]) for each in bill["components"]}
    assert {(deb.name, deb.version) for deb in debian.read(wheels.host())[1]} <= listed
    assert ("eldr", VERSION) in listed
    locked = pins(wheels.LOCK)
    everything = pins(ROOT / "requirements.lock")
    assert {name: everything[name] for name in locked if name in everything} == {
        name: pinned for name, pinned in locked.items() if name in everything
    }, "run hack/image/lock: the image has other versions than those that are tested"
    for name, pinned in locked.items():
        if (name, pinned) not in listed:
            assert "sys_platform" in marker(name) or "python" in marker(name), name


def pins(lock_file: Path) -> dict[str, str]:
    lines = (
        line.split(" ")[0] for line in lock_file.read_text().splitlines() if line and line[0] not in " #"
    )
    return dict(line.split("==") for line in lines)


def marker(name: str) -> str:
    (line,) = (line for line in wheels.LOCK.read_text().splitlines() if line.startswith(f"{name}=="))
    return line.partition(";")[2]


def test_a_second_build_gives_the_same_layers_and_the_other_architecture_is_another(built, archive, tmp_path):
    build(tmp_path, "--arch=amd64", "--arch=arm64")
    (file,) = tmp_path.glob("*.oci.tar")
    with tarfile.open(file) as opened:
        again = Archive(opened)
        manifests = {
            image["platform"]["architecture"]: again.follow(image) for image in again.index["manifests"]
        }
        (first,) = archive.index["manifests"]
        assert manifests[wheels.host()]["layers"] == archive.follow(first)["layers"]
        with tarfile.open(
            fileobj=io.BytesIO(again.blob(manifests["arm64"]["layers"][0])), mode="r:gz"
        ) as base:
            program = base.extractfile(f"usr/bin/python{wheels.PYTHON}")
            assert program is not None
            elf = program.read(20)
    assert (elf[:4], int.from_bytes(elf[18:20], "little")) == (b"\x7fELF", EM_AARCH64)
    bills = [
        (folder / f"eldr-{VERSION}-{wheels.host()}.cdx.json").read_text() for folder in (built, tmp_path)
    ]
    assert bills[0] == bills[1]


def inside(root: Path, scratch: Path, user: str, *command: str) -> str:
    """Run a command in the image, its files read-only but for /tmp, and return what it prints."""
    scratch.mkdir(exist_ok=True)
    scratch.chmod(0o1777)
    script = f"""
        mount --bind {root} {root}
        mount --bind {scratch} {root}/tmp
        mount --bind -o ro,remount {root}
        exec chroot --userspec={user} {root} "$@"
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "image", *command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"/opt/eldr/bin:{os.environ['PATH']}", "HOME": "/tmp"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="chroot and mounts need root and util-linux"
)


@needs_root
@pytest.mark.parametrize("user", ["65532:65532", ARBITRARY])
def test_it_runs_for_any_user_on_a_read_only_root(root, tmp_path, user):
    """Every command, and the copy of the plug-in for an engine, which an init container makes."""

    def eldr(*arguments: str) -> str:
        return inside(root, tmp_path / "tmp", user, "eldr", *arguments)

    assert eldr("--version").strip().endswith(VERSION)
    eldr("engine-plugin", "/tmp/plugin")
    assert (tmp_path / "tmp" / "plugin" / "eldr" / "engine").is_dir()
    for command in COMMANDS:
        eldr(command, "--help")


@needs_root
def test_its_interpreter_finds_libraries_and_certificates(root, tmp_path):
    looked = """
import ssl, subprocess, sys, zoneinfo
from pathlib import Path
zoneinfo.ZoneInfo("Europe/Helsinki")
assert len(ssl.create_default_context().get_ca_certs()) > 100
for library in sorted(Path("/").rglob("*.so*")):
    if library.parts[1] in ("opt", "usr") and not library.is_symlink() and library.suffix != ".conf":
        found = subprocess.run([sys.argv[1], "--list", library], capture_output=True, text=True)
        print(*(f"{library.name}: {line.strip()}" for line in found.stdout.splitlines() if "not found" in line), sep="\\n")
"""
    command = ("python", "-c", looked, "/usr/" + debian.LOADERS[wheels.host()])
    missing = inside(root, tmp_path / "tmp", ARBITRARY, *command).split("\n")
    unused = ("_curses", "_dbm", "_gdbm", "_sqlite3", "readline")
    assert [line for line in missing if line and not line.startswith(unused)] == []


@pytest.fixture(scope="module")
def pool(root, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Kube]]:
    """A cluster whose containers see the unpacked image and nothing else of this machine."""
    try:
        binaries()
    except BinariesUnavailableError as error:
        pytest.skip(f"no control plane here: {error}")
    image = Image(path=("/opt/eldr/bin",), env={"HOME": "/tmp", "MPLCONFIGDIR": "/tmp"}, root=str(root))
    with Cluster(images={"*/eldr:*": image}) as cluster, Kube(cluster, "default") as kube:
        yield cluster, kube


@needs_root
def test_operator_router_engines_and_a_fit_run_from_it(pool):
    cluster, kube = pool
    cluster.helm(
        *("install", "eldr", str(ROOT / "charts/eldr"), "-n", "eldr-system", "--create-namespace"),
        *("--wait", "--timeout", "120s"),
    )
    cluster.kubectl("apply", "-f", str(ROOT / "examples/simulator.yaml"))
    cluster.kubectl("wait", "eldr/qwen3", "--for=condition=Ready", "--timeout=120s")
    selector = f"{contract.LABEL_DEPLOYMENT}=qwen3,{contract.LABEL_ROLE}={contract.ROLE_PREFILL}"
    (pod,) = kube.list("Pod", selector)
    url = f"http://{pod['status']['podIP']}:{contract.PORT_ROUTER}/v1/completions"
    for number in range(60):
        body = {"model": "qwen3", "prompt": f"{number} why is the sky blue?", "max_tokens": 4}
        assert httpx.post(url, json=body, timeout=30).raise_for_status().json()["usage"]
    fit = {"apiVersion": contract.API_VERSION, "kind": contract.KIND_FIT, "metadata": {"name": "first"}}
    fit["spec"] = {"deploymentRef": {"name": "qwen3"}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(fit))

    def ended() -> dict[str, Any]:
        """Return the condition Succeeded once it is known."""
        conditions = kube.get(contract.KIND_FIT, "first").get("status", {}).get("conditions", [])
        return next(
            (one for one in conditions if one["type"] == "Succeeded" and one["status"] != "Unknown"), {}
        )

    shown = ("get", "eldrfits,pods", "-o", "yaml")
    wait_for(lambda: bool(ended()), "the fit to end", 120, show=lambda: cluster.kubectl(*shown))
    assert "first-report" in cluster.kubectl("get", "configmaps")
    assert ended()["reason"] not in {"JobFailed", "Error", "Failed"}, ended()
