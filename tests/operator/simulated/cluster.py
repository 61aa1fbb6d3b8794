"""A simulated cluster with an operator and the world of one deployment."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from eldr_operator.errors import OperatorError
from tests.fakes.kubernetes.server import Asked
from tests.fakes.kubernetes.simulation import SimulatedKube, Simulation
from tests.operator.simulated.changes import SimulatedWorld
from tests.operator.simulated.process import SimulatedOperator, SimulatedRouter
from tests.operator.world import KIND


class Simulated:
    """What a test asks of them again and again."""

    def __init__(self, seed: int = 1) -> None:
        random.seed(seed)  # the jitter of polls
        self.simulation = Simulation(seed)
        self.controllers, self.pass_ = self.simulation.controllers, self.simulation.pass_
        self.kube = SimulatedKube(self.simulation, "n")
        self.world = SimulatedWorld(self.kube)
        self.world.router_kind = SimulatedRouter
        self.operator = SimulatedOperator(self.simulation)
        self.operator.start()

    def up(self, **spec: Any) -> Simulated:
        """Have a deployment, and let the operator look at it once more."""
        self.world.up(**spec)
        self.pass_(30)
        return self

    def fail(self, error: OperatorError, fails: Callable[[Asked], bool], seconds: float = 0.0) -> None:
        """Let writes of some objects wait and then fail; the status of an object is another resource."""

        def is_one(asked: Asked) -> bool:
            return asked.is_write and not asked.subresource and fails(asked)

        self.operator.client.faults += [
            lambda asked: seconds if is_one(asked) else None,
            lambda asked: error if is_one(asked) else None,
        ]

    def minutes(self, count: int) -> None:
        for _ in range(2 * count):
            self.controllers.step()
            self.world.run_pods()
            self.pass_(30)

    def told(self, condition: str) -> tuple[str, str]:
        found = self.kube.condition(KIND, "x", condition)
        return found["status"], found["reason"]

    def message(self, condition: str) -> str:
        return str(self.kube.condition(KIND, "x", condition)["message"])

    def is_current(self) -> bool:
        live = self.kube.get(KIND, "x")
        return live["metadata"]["generation"] == (live.get("status") or {}).get("observedGeneration")
