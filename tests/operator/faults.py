"""What can fail around a deployment while it is changed; each fault is over at the end of its block."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator

import httpx

from eldr_kube.cluster import CommandError
from eldr_kube.processes import signal_group
from tests.operator.chaos import CommonFaults, Fault
from tests.operator.conftest import Operator
from tests.operator.world import KIND, World, simulated
from tests.support.kube import Kube
from tests.support.processes import wait_for


class Faults(CommonFaults):
    """What fails meanwhile, as only a real control plane can; the simulated one has everything else."""

    def __init__(self, operator: Operator, world: World) -> None:
        super().__init__(world)
        self._operator = operator
        self._control_plane = operator.cluster.control_plane
        self._numbers = itertools.count()

    def all(self) -> list[Fault]:
        return [
            self.killed,
            self.api_server_killed,
            self.watches_gone,
            self.namespace_deleted,
            self.etcd_paused,
            self.others_write,
            self.children_deleted,
        ]

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        self._operator.kill()
        yield
        self._operator.start()

    @contextlib.contextmanager
    def api_server_killed(self) -> Iterator[None]:
        yield
        self._control_plane.restart_api_server()

    @contextlib.contextmanager
    def watches_gone(self) -> Iterator[None]:
        """The API server comes back without the versions that watches go on from (410)."""
        yield
        url = self._control_plane.etcd
        found = httpx.post(f"{url}/v3/kv/range", json={"key": "AA=="}, timeout=30).json()
        compacted = {"revision": found["header"]["revision"], "physical": True}
        assert httpx.post(f"{url}/v3/kv/compaction", json=compacted, timeout=30).is_success
        self._control_plane.restart_api_server()

    @contextlib.contextmanager
    def namespace_deleted(self) -> Iterator[None]:
        """Another namespace with a deployment goes."""
        cluster, name = self._operator.cluster, f"{self._kube.namespace}-other-{next(self._numbers)}"
        cluster.create_namespace(name)
        with Kube(cluster, name) as kube:
            kube.create(KIND, {"name": "x"}, spec=simulated())
            yield
            cluster.delete_namespace(name)

    @contextlib.contextmanager
    def etcd_paused(self) -> Iterator[None]:
        yield
        etcd = self._control_plane.processes["etcd"]
        signal_group(etcd, signal.SIGSTOP)
        try:
            wait_for(lambda: not self._is_ready(), "an API server without etcd")
        finally:
            signal_group(etcd, signal.SIGCONT)
        wait_for(self._is_ready, "an API server with etcd")

    @contextlib.contextmanager
    def others_write(self) -> Iterator[None]:
        """Somebody changes what the operator has made, and annotates everything between its reads and writes."""
        command = ["-n", self._kube.namespace, "set", "image", "deployment/x-prefill", "engine=foreign"]
        self._kube.cluster.kubectl(*command)
        self._annotate()
        yield

    def _is_ready(self) -> bool:
        try:
            self._kube.cluster.kubectl("get", "--raw", "/readyz/etcd", "--request-timeout=5s")
        except CommandError:
            return False
        return True
