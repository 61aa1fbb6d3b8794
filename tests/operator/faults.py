"""What can fail around a deployment while it is changed; each fault is over at the end of its block."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx

from eldr_kube.cluster import CommandError
from eldr_kube.processes import signal_group
from tests.operator.chaos import CommonFaults
from tests.operator.conftest import Operator
from tests.operator.test_children import broken_webhook
from tests.operator.world import KIND, World, simulated
from tests.support.kube import Kube, Refused
from tests.support.processes import wait_for

AN_HOUR_AHEAD = """
from datetime import timedelta
from eldr_operator import clock
now = clock.utc_now
clock.utc_now = lambda: now() + timedelta(hours=1)
"""


class Faults(CommonFaults):
    """What fails meanwhile."""

    def __init__(self, operator: Operator, rival: Operator, world: World) -> None:
        super().__init__(world)
        self._operator, self._rival = operator, rival
        self._control_plane = operator.cluster.control_plane
        self._numbers = itertools.count()

    def all(self) -> list[Callable[[], AbstractContextManager[None]]]:
        return [
            self.killed,
            self.stopped,
            self.hung,
            self.rivalled,
            self.api_server_killed,
            self.watches_gone,
            self.clock_ahead,
            self.namespace_deleted,
            self.etcd_paused,
            self.webhook_down,
            self.no_pods_allowed,
            self.routers_deaf,
            self.others_write,
            self.children_deleted,
        ]

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        self._operator.kill()
        yield
        self._operator.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        yield
        self._operator.stop()
        self._operator.start()

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        self._operator.pause()
        try:
            yield
        finally:
            self._operator.resume()

    @contextlib.contextmanager
    def rivalled(self) -> Iterator[None]:
        """Two act at the same time, as without a Lease."""
        self._rival.start()
        try:
            yield
            before = self._rival.passes()
            wait_for(lambda: self._rival.passes() > before + 2, "passes of both")
        finally:
            self._rival.stop()

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
    def clock_ahead(self) -> Iterator[None]:
        """The operator's clock is an hour ahead, and then is not."""
        self._operator.stop()
        self._operator.start(release=AN_HOUR_AHEAD)
        yield
        self._operator.stop()
        self._operator.start()

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
    def webhook_down(self) -> Iterator[None]:
        with broken_webhook(self._kube, "policy", "poddisruptionbudgets"):
            yield
            with contextlib.suppress(Refused):
                self._kube.delete("PodDisruptionBudget", "x-decode")

    @contextlib.contextmanager
    def no_pods_allowed(self) -> Iterator[None]:
        url = f"/api/v1/namespaces/{self._kube.namespace}/resourcequotas"
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
        self._kube.request("POST", url, body | {"spec": {"hard": {"pods": "0"}}})
        try:
            yield
        finally:
            self._kube.request("DELETE", f"{url}/none")

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
