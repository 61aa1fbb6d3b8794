"""The release before this one: its wheel and chart run a deployment, then this operator takes over under traffic.

``ELDR_PREVIOUS`` names a commit or tag of it. Nothing is released yet; any older commit shows whether what it runs still works.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from eldr import contract
from eldr_demo.arrivals import Poisson
from eldr_kube.agent.images import Image
from eldr_kube.cluster import Cluster
from tests.e2e.conftest import CHART, NAME, SECONDS, SPEED, System, failed, fit, traffic, until, usual
from tests.support.kube import Kube
from tests.support.processes import ELDR, wait_for

PREVIOUS = os.environ.get("ELDR_PREVIOUS", "")
pytestmark = [
    pytest.mark.kube,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PREVIOUS, reason="no release precedes this one: set ELDR_PREVIOUS to a commit"),
]

ROOT = Path(__file__).parents[2]
OLD, NEW = "previous", "this"
"""Tags of images."""
RATE = 8.0


class Release(NamedTuple):
    """What a release consists of.

    Attributes
    ----------
    chart : Path
    packages : Path
        Its wheel, unpacked: what Python finds first.
    """

    chart: Path
    packages: Path


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Build the wheel of the release; dependencies are this environment's."""
    folder = tmp_path_factory.mktemp("previous")
    source, packages = folder / "source", folder / "packages"
    archive = folder / "source.tar"
    run("git", "-C", ROOT, "archive", f"--output={archive}", PREVIOUS)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    uv = ELDR.parent / "uv"
    run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, "--python", sys.executable, source)
    (wheel,) = folder.glob("*.whl")
    run(uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", packages, wheel)
    chart = shutil.copytree(source / "charts" / "eldr", folder / "chart")
    return Release(chart, packages)


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cluster(previous: Release) -> Iterator[Cluster]:
    """A cluster in which the tag ``previous`` means the previous release."""
    old = Image(
        entrypoint=(str(ELDR),),
        path=(str(ELDR.parent),),
        env={"PYTHONPATH": str(previous.packages)},
        keep=(sys.prefix, sys.base_prefix, str(ROOT), str(previous.packages)),
    )
    with Cluster(nodes=2, images={f"*:{OLD}": old}) as started:
        yield started


@pytest.fixture(scope="module")
def running(cluster: Cluster, kube: Kube, previous: Release) -> System:
    """A deployment of the previous release."""
    system = System(cluster, kube)
    install(system, previous.chart, OLD)
    system.deploy(usual(SPEED, samples=50))
    return system


def install(system: System, chart: Path, tag: str) -> None:
    values = "--set", f"resyncSeconds=2,image.tag={tag}"
    system.cluster.helm("upgrade", "--install", "eldr", str(chart), *values, "--wait", "--timeout", "180s")


def images(system: System) -> set[str]:
    """Return the tags of images that pods run."""
    found = [each["image"] for pod in system.engines() for each in pod["spec"]["containers"]]
    return {image.rpartition(":")[2] for image in found}


async def test_this_operator_takes_over_what_runs_and_then_replaces_it(running: System):
    system = running
    assert images(system) == {OLD}
    before = system.uids()
    async with traffic(system, Poisson(RATE), logged=True) as load:

        async def answered(more: int) -> None:
            await asyncio.to_thread(until, load, len(load.outcomes) + more)

        await answered(60)
        await asyncio.to_thread(install, system, CHART, NEW)
        await asyncio.to_thread(system.wait, "UpdateAvailable", status="True", text=f":{NEW}")
        await answered(60)
        assert system.uids() == before, "the upgrade of the operator replaced pods"
        assert await asyncio.to_thread(verdict, system, "over-previous") in ("Accepted", "Rejected")

        rolling = asyncio.create_task(asyncio.to_thread(roll, system))
        mixed = set()
        while not rolling.done():
            mixed.add(frozenset(await asyncio.to_thread(images, system)))
            await asyncio.sleep(0.2)
        await rolling
        assert images(system) == {NEW}
        assert frozenset({OLD, NEW}) in mixed, "both releases never ran side by side"
        await answered(60)
    assert failed(load) == []


def verdict(system: System, name: str) -> str:
    """Let a fit of this release read what routers of the previous one have sampled; return its reason."""
    system.apply(fit(name))

    def ended() -> dict[str, str]:
        return system.condition("ef", name, "Succeeded")

    wait_for(lambda: ended().get("status") in ("True", "False"), "a verdict", SECONDS, ended)
    return ended()["reason"]


def roll(system: System) -> None:
    """Replace the pods of the previous release by those of this one."""
    system.kube.merge(contract.KIND_DEPLOYMENT, NAME, {"spec": {"update": "Immediate"}})

    def settled() -> bool:
        return images(system) == {NEW} and system.ready()

    wait_for(settled, f"pods of {NEW}", 300, lambda: system.get("eldr")["status"])
