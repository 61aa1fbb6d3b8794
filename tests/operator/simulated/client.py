"""A client that asks all the time, and what ``Available`` says of the deployment meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from eldr import contract
from eldr_operator.conditions import condition_of
from tests.fakes.kubernetes.simulation import Simulation
from tests.operator.simulated.process import SimulatedOperator
from tests.operator.world import KIND, World
from tests.support.kube import Object

EVERY_SECONDS = 1.0
FAILS_SECONDS = 30.0
"""After requests have failed for so long, ``Available`` must be False."""
LATE_SECONDS = 15.0
"""That an operator may take to poll routers and to write."""


class ConstantClient:
    """Asks for a completion every second: it needs a ready router that reaches a decode engine, and a ready engine of each role.

    Parameters
    ----------
    operators : sequence of SimulatedOperator
        While none of them can act, nobody writes a status.
    """

    def __init__(self, simulation: Simulation, operators: Sequence[SimulatedOperator], world: World) -> None:
        self._simulation, self._operators, self._world = simulation, operators, world
        self._seen: tuple[str, bool, str] | None = None
        self._since = 0.0
        simulation.programs.append(simulation.loop.create_task(self._run()))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self._simulation.controllers.step()  # else pods of what was deleted would go on serving
            live = self._world.kube.find(KIND, self._world.name)
            if live is None or not any(operator.sees() for operator in self._operators):
                self._seen = None
                continue
            self._look(live)

    def _look(self, live: Object) -> None:
        now, is_served = self._simulation.loop.time(), self._answers()
        available = condition_of(live, "Available").get("status", "")
        if (seen := (live["metadata"]["uid"], is_served, available)) != self._seen:
            self._seen, self._since = seen, now
        assert available == str(is_served) or now - self._since <= FAILS_SECONDS + LATE_SECONDS, (
            f"requests have been {'served' if is_served else 'failing'} for {now - self._since:.0f} s, "
            f"and Available is {available!r}"
        )

    def _answers(self) -> bool:
        ready = [pod for pod in self._world.kube.list("Pod", contract.LABEL_ROLE) if _is_ready(pod)]
        roles = {pod["metadata"]["labels"][contract.LABEL_ROLE] for pod in ready}
        names = {pod["metadata"]["name"] for pod in ready}
        routers = [router for name, router in self._world.routers.items() if name in names]
        return roles == {contract.ROLE_PREFILL, contract.ROLE_DECODE} and any(
            engine["healthy"] for router in routers for engine in router.decode
        )


def _is_ready(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and condition_of(pod, "Ready").get("status") == "True"
