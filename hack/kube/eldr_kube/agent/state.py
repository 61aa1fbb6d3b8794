"""What the agent knows about a container: the part that a pod's status shows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eldr_kube.agent.restarts import Policy, restarts_after

Object = dict[str, Any]


@dataclass(slots=True)
class ContainerState:
    """A container's state.

    Attributes
    ----------
    spec : dict
        As in the pod.
    policy : {"Always", "OnFailure", "Never"}
        When it starts again.
    init : bool
        Whether it is an init container or a sidecar.
    current, last : dict
        ``state`` and ``lastState`` of its status.
    ready : bool
        What its readiness probe says; for a container without one, whether it has started.
    started : bool
        Whether its startup probe has passed.
    """

    spec: Object
    policy: Policy
    init: bool
    current: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last: Object = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that runs as long as the pod."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return "running" in self.current

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last run; None while it runs, waits or was never started."""
        ended = self.current.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def final_code(self) -> int | None:
        """Exit code of the last run that ended, even if the next one waits."""
        ended = self.current.get("terminated") or self.last.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def over(self) -> bool:
        """Whether it has ended and will not start again."""
        return self.exit_code is not None and not restarts_after(self.policy, self.exit_code)

    def resume(self, status: Object) -> None:
        """Take over what an agent reported that is gone; its process went with it."""
        state = status.get("state", {})
        self.restarts = int(status.get("restartCount", 0))
        self.last = status.get("lastState", {})
        if "waiting" in state or not state:
            return
        self.restarts += 1
        self.last = (
            {"terminated": state["terminated"]}
            if "terminated" in state
            else {"terminated": terminated(137, "ContainerStatusUnknown", "the node agent ended", "", "")}
        )


def container_state(pod_policy: Policy, spec: Object, *, init: bool) -> ContainerState:
    """Return the state of a container that was never started."""
    policy: Policy = pod_policy
    if init:
        sidecar = spec.get("restartPolicy") == "Always"
        policy = "Always" if sidecar else ("Never" if pod_policy == "Never" else "OnFailure")
    return ContainerState(spec, policy, init)


def terminated(code: int, reason: str, message: str, begun: str, ended: str) -> Object:
    """Return a ``terminated`` state."""
    value: Object = {"exitCode": code, "reason": reason}
    if message:
        value["message"] = message
    if begun:
        value |= {"startedAt": begun, "finishedAt": ended}
    return value
