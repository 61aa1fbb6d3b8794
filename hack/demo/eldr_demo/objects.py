"""What the demo applies, and how it looks at the cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from eldr import contract
from eldr_kube.cluster import Cluster

NAME = "demo"
NAMESPACE = "default"
CHART = Path(__file__).parents[3] / "charts" / "eldr"


def deployment(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the demo's EldrDeployment."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND_DEPLOYMENT,
        "metadata": {"name": NAME},
        "spec": spec,
    }


class View:
    """The cluster as the demo sees it, through kubectl and helm only."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._routers: list[str] = []

    async def kubectl(self, *arguments: str, stdin: dict[str, Any] | None = None) -> str:
        """Run kubectl in the demo's namespace and return what it prints."""
        text = None if stdin is None else yaml.safe_dump(stdin)
        return await asyncio.to_thread(self._cluster.kubectl, "-n", NAMESPACE, *arguments, stdin=text)

    async def get(self, kind: str, name: str = NAME) -> dict[str, Any]:
        """Return an object."""
        found: dict[str, Any] = json.loads(await self.kubectl("get", kind, name, "-o", "json"))
        return found

    async def fits(self, trigger: str) -> list[str]:
        """Return the names of the EldrFits that were made for a reason, oldest first."""
        listed = json.loads(await self.kubectl("get", "ef", "-o", "json"))["items"]
        mine = [fit for fit in listed if fit["spec"]["trigger"] == trigger]
        mine.sort(key=lambda fit: (fit["metadata"]["creationTimestamp"], fit["metadata"]["name"]))
        return [str(fit["metadata"]["name"]) for fit in mine]

    async def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role that run and are not ending."""
        selector = f"{contract.LABEL_DEPLOYMENT}={NAME},{contract.LABEL_ROLE}={role}"
        listed = json.loads(await self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return [
            pod
            for pod in listed
            if pod["status"].get("podIP") and not pod["metadata"].get("deletionTimestamp")
        ]

    async def urls(self, role: str, port: int) -> list[str]:
        """Return the base URLs of a role's pods."""
        return [f"http://{pod['status']['podIP']}:{port}" for pod in await self.pods(role)]

    async def condition(self, kind: str, name: str, condition: str) -> dict[str, Any]:
        """Return one condition of an object, empty where it is not set yet."""
        status = (await self.get(kind, name)).get("status", {})
        return next((item for item in status.get("conditions", []) if item["type"] == condition), {})


async def until(check: Callable[[], Any], what: str, seconds: float) -> Any:
    """Await ``check()`` until it returns something true; TimeoutError if it never does; the message names what was waited for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        if value := await check():
            return value
        await asyncio.sleep(0.3)
    raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
