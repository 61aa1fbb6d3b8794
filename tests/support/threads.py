"""Clients of a test cluster's API server, one per thread."""

from __future__ import annotations

import ssl
import threading

import httpx

from eldr.clients import UNBOUNDED
from eldr_kube.cluster import Cluster


class ApiClients:
    """Clients of which each thread has its own.

    httpcore 1.0.9 asks of every connection whether it is idle, and then whether its socket can be read: one that another thread begins to
    use in between, and that is answered, looks as if its server had closed it. The pool closes it under that thread ("Bad file descriptor").

    Parameters
    ----------
    token : str or None
        Whose rights they have; None: the administrator's.
    """

    def __init__(self, cluster: Cluster, token: str | None = None) -> None:
        self._server = cluster.server
        self._headers = {"Authorization": f"Bearer {token or cluster.token}"}
        self._trusted = ssl.create_default_context(cafile=str(cluster.ca))
        self._clients: dict[int, httpx.Client] = {}

    def __call__(self) -> httpx.Client:
        """Return the client of the thread that asks; a later thread may inherit that of one that is gone."""
        thread = threading.get_ident()
        if thread not in self._clients:
            self._clients[thread] = httpx.Client(
                base_url=self._server,
                headers=self._headers,
                verify=self._trusted,
                timeout=120,
                limits=UNBOUNDED,
                trust_env=False,
            )
        return self._clients[thread]

    def close(self) -> None:
        """Close them all."""
        for client in list(self._clients.values()):
            client.close()
