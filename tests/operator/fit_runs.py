"""Runs the container of a fit's Job as a real process, with the rights of its account; the test plays the kubelet around it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from eldr import contract
from eldr_kube.processes import end, spawn
from tests.operator.world import World
from tests.support.kube import Object
from tests.support.processes import wait_for


class FitRun:
    """One pod of the Job of a fit.

    Parameters
    ----------
    world : World
    name : str
        Of the EldrFit.
    folder : Path
        For its kubeconfig and what it prints.
    attempt : int
        1 for the Job's first pod.
    """

    def __init__(self, world: World, name: str, folder: Path, attempt: int = 1) -> None:
        self.world, self.name = world, name
        kube = world.kube
        wait_for(lambda: kube.find("Job", name), f"Job {name}")
        pods = wait_for(lambda: self._pods(attempt), f"pod {attempt} of Job {name}")
        self.pod = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"]
        spec = kube.get("Job", name)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        token = kube.account_token(spec["serviceAccountName"])
        path = kube.cluster.kubeconfig_of(token, folder / f"{name}-{attempt}.kubeconfig")
        self.log = folder / f"{name}-{attempt}.log"
        command = [sys.executable, "-c", "from eldr.cli import main; main()", *container["args"]]
        env = {**os.environ, **self._environment(container), "KUBECONFIG": str(path)}
        self.process: subprocess.Popen[bytes] = spawn(command, log=self.log, env=env)

    def _pods(self, number: int) -> list[Object]:
        found = self.world.kube.list("Pod", f"batch.kubernetes.io/job-name={self.name}")
        return found if len(found) == number else []

    def _environment(self, container: Object) -> dict[str, str]:
        made = {}
        for variable in container["env"]:
            if secret := variable.get("valueFrom", {}).get("secretKeyRef"):
                data = self.world.kube.get("Secret", secret["name"])["data"]
                made[variable["name"]] = base64.b64decode(data[secret["key"]]).decode()
            elif "value" in variable:
                made[variable["name"]] = variable["value"]
        return made

    def finish(self) -> Object:
        """Wait until it has ended well, tell the Job, and return the report."""
        wait_for(lambda: self.process.poll() is not None, f"fit {self.name}", 120, self.log.read_text)
        assert self.process.returncode == 0, self.log.read_text()
        self.world.end_job(self.name, "Succeeded", self.pod)
        return self.report

    @property
    def report(self) -> Object:
        data = self.world.kube.get("ConfigMap", contract.report_name(self.name))["data"]
        return json.loads(data[contract.REPORT_KEY])

    def kill(self) -> None:
        """End it without a word, as a node does that runs out of memory."""
        self.process.kill()
        self.process.wait()
        self.world.kube.strategic("Pod", self.pod, {"status": {"phase": "Failed"}}, "status")

    def close(self) -> None:
        end(self.process)
