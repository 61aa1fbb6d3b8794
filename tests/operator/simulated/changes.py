"""More of what people do to a deployment: cheap where time costs nothing."""

from __future__ import annotations

from typing import Any

from eldr import contract
from tests.operator.chaos import Changes, changed
from tests.operator.world import FIT, KIND, World
from tests.support.kube import Object

BROKEN = "broken"
CRASHES = "crashes"
"""In a variable of an engine that is ready for a moment and then ends, again and again."""
DEADLINE_SECONDS = 30


class MoreChanges(Changes):
    """Revisions that never get ready, sets that are pinned, and fits that are deleted as well."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kinds += [self.break_, self.pin, self.drop]
        self._broken: set[str] = set()

    def break_(self) -> None:
        """Ask for pods that never get ready; :meth:`settle` sees them rolled back, and asks for others."""
        role = self._draw.choice(["prefill", "decode"])
        self._broken.add(role)
        self._patch(role, env=changed(BROKEN), rollout={"progressDeadlineSeconds": DEADLINE_SECONDS})

    def roll(self) -> None:
        self._fix()
        super().roll()

    def pin(self) -> None:
        """Keep the set of a fit that was accepted, or will be."""
        if self.plan.fits:
            self._patch("centroids", pin=self._draw.choice(self.plan.fits)[0])

    def drop(self) -> None:
        """Delete a fit; its set stays while it serves."""
        if self.plan.fits:
            dropped = self.plan.fits.pop(self._draw.randrange(len(self.plan.fits)))
            self.world.kube.delete(FIT, dropped[0])

    def recreate(self) -> None:
        self._fix()
        self._unpin()
        super().recreate()

    def settle(self) -> None:
        for role in sorted(self._broken):
            self.world.kube.until(
                lambda role=role: self._is_back(role), f"{role} back", 900, lambda: self.world.status
            )
        self._fix()
        super().settle()

    def end(self) -> None:
        self._unpin()
        super().end()

    def _is_back(self, role: str) -> bool:
        self.world.run_pods()
        found = self.world.kube.condition(KIND, "x", "Progressing")
        return found.get("reason") == "RolledBack" and f"{role}: " in found["message"]

    def _fix(self) -> None:
        for role in sorted(self._broken):
            # the deadline goes with it: pods of a sound revision may take longer than that while something fails
            self._patch(role, env=changed("0"), rollout={"progressDeadlineSeconds": None})
            del self.plan.spec[role]["rollout"]
        self._broken.clear()

    def _unpin(self) -> None:
        if self.plan.spec.pop("centroids", None):
            self.world.patch(centroids={"pin": None})


class SimulatedWorld(World):
    """A world whose kubelets know pods that never get ready, and pods that crash as soon as they are."""

    def run_pods(self) -> None:
        super().run_pods()
        for pod in self.kube.list("Pod", f"{contract.LABEL_DEPLOYMENT}={self.name},{contract.LABEL_ROLE}"):
            if _has(pod, CRASHES):
                self.crash(pod)

    def _run(self, pod: Object) -> None:
        if not _has(pod, BROKEN):
            super()._run(pod)


def _has(pod: Object, value: str) -> bool:
    env = [each for container in pod["spec"]["containers"] for each in container.get("env", [])]
    return any(each.get("value") == value for each in env)
