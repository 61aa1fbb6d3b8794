"""What can fail around a deployment in a simulated cluster; each fault is over at the end of its block."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator
from datetime import timedelta

from eldr_operator.errors import ApiError, ApiUnavailableError, NoAnswerError, RequestFailedError
from tests.fakes.kubernetes.server import Asked, Fault, failing, unavailable
from tests.fakes.kubernetes.simulation import SimulatedKube, Simulation
from tests.operator import chaos
from tests.operator.simulated.process import SimulatedOperator
from tests.operator.world import KIND, World, simulated
from tests.support.kube import Refused

WEBHOOK_DOWN = RequestFailedError(500, "InternalError", "failed calling webhook")


class SimulatedFaults(chaos.CommonFaults):
    """What fails meanwhile.

    Parameters
    ----------
    operators : list of SimulatedOperator
        The one that acts, one that stands by, and one that is not started.
    """

    def __init__(self, simulation: Simulation, operators: list[SimulatedOperator], world: World) -> None:
        super().__init__(world)
        self._simulation = simulation
        self._operator, self._standby, self._rival = operators
        self._numbers = itertools.count()

    def all(self) -> list[chaos.Fault]:
        return [
            self.killed,
            self.killed_between_writes,
            self.stopped,
            self.hung,
            self.rivalled,
            self.api_server_killed,
            self.api_server_stalled,
            self.watches_gone,
            self.too_many_requests,
            self.conflicts,
            self.slow_admission,
            self.webhook_down,
            self.no_pods_allowed,
            self.clock_ahead,
            self.namespace_deleted,
            self.routers_deaf,
            self.routers_hung,
            self.routers_refused,
            self.others_write,
            self.children_deleted,
        ]

    def _a_while(self, most: float = 20.0) -> None:
        self._simulation.pass_(self._simulation.draw.uniform(0, most))

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        self._operator.kill()
        yield
        self._a_while()
        self._operator.start()

    @contextlib.contextmanager
    def killed_between_writes(self) -> Iterator[None]:
        """Several times, each a moment after it has begun to act on a change."""
        yield
        for _ in range(4):
            self._a_while(0.5)
            self._operator.kill()
            self._operator.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The standby takes over, and gives back."""
        yield
        self._operator.stop()
        self._simulation.until(self._standby.acts, "the standby to act")
        self._a_while()
        self._operator.start()
        self._standby.stop()
        self._standby.start()

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """It stands still for longer than its Lease holds."""
        self._operator.client.stands.clear()
        yield
        self._a_while(40)
        self._operator.client.stands.set()

    @contextlib.contextmanager
    def rivalled(self) -> Iterator[None]:
        """Two act at the same time, as without a Lease."""
        self._rival.start()
        yield
        self._a_while()
        self._rival.kill()

    @contextlib.contextmanager
    def _failing(self, fault: Fault) -> Iterator[None]:
        clients = [self._operator.client, self._standby.client]
        for client in clients:
            client.faults.append(fault)
        yield
        for client in clients:
            client.faults.remove(fault)

    @contextlib.contextmanager
    def api_server_killed(self) -> Iterator[None]:
        with self._operator.blind(), self._failing(unavailable):
            yield
            self._a_while()

    @contextlib.contextmanager
    def api_server_stalled(self) -> Iterator[None]:
        """It takes requests and answers late, or not at all."""
        draw = self._simulation.draw

        def fault(asked: Asked) -> Exception | float:
            return draw.choice([0.0, 14.0, NoAnswerError(f"{asked.method} {asked.kind}: no answer")])

        with self._failing(fault):
            yield
            self._a_while(60)

    @contextlib.contextmanager
    def watches_gone(self) -> Iterator[None]:
        with self._operator.blind():
            yield
            self._a_while(60)

    @contextlib.contextmanager
    def too_many_requests(self) -> Iterator[None]:
        draw = self._simulation.draw

        def fault(asked: Asked) -> Exception | None:
            refused = ApiUnavailableError(f"429 {asked.method} {asked.kind}: too many requests")
            return refused if draw.random() < 0.5 else None

        with self._failing(fault):
            yield
            self._a_while()

    @contextlib.contextmanager
    def conflicts(self) -> Iterator[None]:
        draw = self._simulation.draw

        def fault(asked: Asked) -> Exception | None:
            refused = ApiError(409, "Conflict", "the object has been modified")
            return refused if asked.method in {"PATCH", "PUT"} and draw.random() < 0.3 else None

        with self._failing(fault):
            yield
            self._a_while()

    @contextlib.contextmanager
    def slow_admission(self) -> Iterator[None]:
        def fault(asked: Asked) -> float:
            return 4.0 if asked.is_write else 0.0

        with self._failing(fault):
            yield
            self._a_while(60)

    @contextlib.contextmanager
    def webhook_down(self) -> Iterator[None]:
        with self._failing(failing(WEBHOOK_DOWN, "PodDisruptionBudget")):
            yield
            with contextlib.suppress(Refused):
                self._kube.delete("PodDisruptionBudget", "x-decode")
            self._a_while()

    @contextlib.contextmanager
    def no_pods_allowed(self) -> Iterator[None]:
        self._simulation.controllers.quota.add(self._kube.namespace)
        yield
        self._a_while()
        self._simulation.controllers.quota.clear()

    @contextlib.contextmanager
    def clock_ahead(self) -> Iterator[None]:
        """The operator's clock is an hour ahead, and then is not."""
        self._operator.stop()
        self._operator.ahead = timedelta(hours=1)
        self._operator.start()
        yield
        self._a_while()
        self._operator.stop()
        self._operator.ahead = timedelta(0)
        self._operator.start()

    @contextlib.contextmanager
    def namespace_deleted(self) -> Iterator[None]:
        """Another namespace with a deployment goes."""
        kube = SimulatedKube(self._simulation, f"other-{next(self._numbers)}")
        kube.create(KIND, {"name": "x"}, spec=simulated())
        yield
        for live in self._simulation.store.everything():
            metadata = live["metadata"]
            if metadata["namespace"] == kube.namespace:
                self._simulation.store.delete((live["kind"], metadata["namespace"], metadata["name"]))

    @contextlib.contextmanager
    def routers_hung(self) -> Iterator[None]:
        with self._routers("is_hung"):
            yield

    @contextlib.contextmanager
    def routers_refused(self) -> Iterator[None]:
        """The API server takes their tokens no longer, and the engines that they know are gone."""
        routers = [*self._world.routers.values()]
        for router in routers:
            router.problem = "pods: 401: Unauthorized"
            router.decode = [{"name": "x-decode-0", "healthy": False}]
        yield
        self._a_while(120)
        for router in routers:
            router.problem, router.decode = None, [{"name": "x-decode-0", "healthy": True}]

    @contextlib.contextmanager
    def others_write(self) -> Iterator[None]:
        """Somebody changes what the operator has made, and annotates everything between its reads and writes."""
        live = self._kube.find("Deployment", "x-prefill")
        if live is not None:
            spec = copy.deepcopy(live["spec"])
            spec["template"]["spec"]["containers"][0]["image"] = "foreign"
            self._kube.merge("Deployment", "x-prefill", {"spec": spec})
        self._annotate()
        yield
