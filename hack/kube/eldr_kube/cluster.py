"""A whole cluster for tests and the demo: control plane, node agent, kubectl and helm."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Self

from eldr_kube.agent import READY_FILE
from eldr_kube.agent.images import Image, dump_images
from eldr_kube.binaries import binaries
from eldr_kube.control_plane import ControlPlane
from eldr_kube.processes import end, spawn
from eldr_kube.servers import ENDPOINT

NODE_SECONDS = 60.0
ACCOUNT_SECONDS = 60.0


class CommandError(Exception):
    """kubectl or helm failed; the message holds what it printed."""


class Cluster:
    """A Kubernetes cluster whose pods run as local processes.

    Parameters
    ----------
    nodes : int
        Nodes of the agent.
    agent : bool
        Whether pods really run.
    audit : bool
        Whether the API server writes an audit log.
    image_map : Path, optional
        What images mean here, see :mod:`eldr_kube.agent.images`.
    images : mapping of str to Image, optional
        The same from a program, for example :func:`eldr_kube.vllm.vllm_images`; wins over ``image_map``.
    data : Path, optional
        Folder to keep; by default a temporary one.
    agent_options : tuple of str
        More options of ``python -m eldr_kube.agent``.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        agent: bool = True,
        audit: bool = False,
        image_map: Path | None = None,
        images: Mapping[str, Image] | None = None,
        data: Path | None = None,
        agent_options: tuple[str, ...] = (),
    ) -> None:
        self._nodes = nodes
        self._with_agent = agent
        self._audit = audit
        self._image_map = image_map
        self._images = images or {}
        self._given_data = data
        self._agent_options = agent_options
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.bin = binaries()
        self.data = self._given_data or Path(tempfile.mkdtemp(prefix="eldr-kube-"))
        if self._given_data is None:
            self._stack.callback(shutil.rmtree, self.data, ignore_errors=True)
        self.control_plane = self._stack.enter_context(
            ControlPlane(self.bin, self.data / "control-plane", nodes=self._with_agent, audit=self._audit)
        )
        self.kubeconfig = self.control_plane.kubeconfig
        self.server = self.control_plane.server
        self.token = self.control_plane.token
        self.ca = self.control_plane.ca
        self._wait_for_account("default")
        if self._with_agent:
            self.start_agent()

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait until pods can be created in it."""
        self._request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self._wait_for_account(name)

    def delete_namespace(self, name: str) -> None:
        """Have a namespace deleted; what is in it ends meanwhile."""
        self._request("DELETE", f"/api/v1/namespaces/{name}")

    def _wait_for_account(self, namespace: str) -> None:
        """Wait for the ServiceAccount that every pod needs; the controller manager makes it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        deadline = time.monotonic() + ACCOUNT_SECONDS
        while self._request("GET", path, missing=True) == HTTPStatus.NOT_FOUND:
            if time.monotonic() > deadline:
                raise CommandError(f"namespace {namespace} has no default ServiceAccount")
            time.sleep(0.05)

    def start_agent(self, *options: str) -> None:
        """Start the node agent, with more options than the cluster's own, and wait until its nodes are Ready."""
        certificate = self.control_plane.kubelet_certificate
        state = self.data / "agent"
        command = [sys.executable, "-m", "eldr_kube.agent", "--kubeconfig", str(self.kubeconfig)]
        command += ["--state", str(state), "--nodes", str(self._nodes)]
        command += ["--endpoint", str(self.bin / ENDPOINT)]
        command += ["--certificate", str(certificate.certificate), "--key", str(certificate.key)]
        for path in self._image_maps():
            command += ["--image-map", str(path)]
        # Nodes of an agent that was killed look Ready for a while: only the file tells the new one from it.
        ready = state / READY_FILE
        ready.unlink(missing_ok=True)
        log = self.data / "agent.log"
        self.agent = spawn([*command, *self._agent_options, *options], log=log)
        self._stack.callback(end, self.agent, 60.0)
        deadline = time.monotonic() + NODE_SECONDS
        while not (ready.exists() and self._nodes_ready()):
            if self.agent.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise CommandError(f"the node agent is not ready:\n{tail}")
            time.sleep(0.1)

    def _image_maps(self) -> list[Path]:
        maps = [self._image_map] if self._image_map else []
        if self._images:
            own = self.data / "images.yaml"
            dump_images(self._images, own)
            maps.insert(0, own)
        return maps

    def _nodes_ready(self) -> bool:
        jsonpath = "{range .items[*]}{.status.conditions[?(@.type=='Ready')].status} {end}"
        return self.kubectl("get", "nodes", "-o", f"jsonpath={jsonpath}").split() == ["True"] * self._nodes

    def stop_agent(self) -> None:
        """End the node agent and with it every container; pods stay as the API server has them."""
        end(self.agent, 60.0)

    def wait(self) -> None:
        """Wait until the agent or a server ends; the CommandError says which."""
        while True:
            ended = [name for name, process in self.processes().items() if process.poll() is not None]
            if ended:
                raise CommandError(f"{', '.join(ended)} ended; see its log in {self.data}")
            time.sleep(0.2)

    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """Return the servers and the agent by name."""
        agent = {"agent": self.agent} if self._with_agent else {}
        return {**self.control_plane.processes, **agent}

    def _request(
        self, method: str, path: str, body: dict[str, object] | None = None, *, missing: bool = False
    ) -> int:
        """Ask the API server, which costs less than a process of kubectl; return the status, 404 where that is no error."""
        request = urllib.request.Request(
            self.server + path,
            json.dumps(body).encode() if body else None,
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        context = ssl.create_default_context(cafile=str(self.ca))
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            if missing and error.code == HTTPStatus.NOT_FOUND:
                return error.code
            raise CommandError(f"{method} {path}: {error.read().decode(errors='replace')}") from error

    def kubeconfig_of(self, token: str, path: Path) -> Path:
        """Write a kubeconfig for who has a token, such as a service account; return the path."""
        config = json.loads(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path.write_text(json.dumps(config))
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return what it prints; CommandError if it fails."""
        return self._command("kubectl", arguments, stdin)

    def helm(self, *arguments: str) -> str:
        """Run helm as the administrator and return what it prints."""
        return self._command("helm", arguments, None)

    def _command(self, program: str, arguments: tuple[str, ...], stdin: str | None) -> str:
        home = str(self.data / "home")
        env = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "HOME": home,
            "XDG_CACHE_HOME": f"{home}/.cache",
        }
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
        if done.returncode:
            raise CommandError(
                f"{program} {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout
