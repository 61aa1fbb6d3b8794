"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, for one run."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from eldr_kube import pki
from eldr_kube.ports import free_port, free_ports
from eldr_kube.processes import end, spawn
from eldr_kube.servers import ETCD

READY_SECONDS = 120.0
_SERVICE_RANGE = "10.96.0.0/16"
# These three refuse pods on loopback addresses with a warning a second; a name that does not exist ends the process.
_CONTROLLERS = "*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
# A cluster for a few pods: fewer collections of garbage and fewer idle threads, which is a seventh of the CPU time of tests with it.
_GO = {"GOMAXPROCS": "1", "GOGC": "400", "GOMEMLIMIT": "1GiB"}
# Deletes pods of nodes that do not exist, after a minute.
_POD_COLLECTOR = ",-pod-garbage-collector-controller"


class ControlPlaneError(Exception):
    """A server did not start; the message holds the end of its log."""


class ControlPlane:
    """A real Kubernetes control plane.

    Parameters
    ----------
    binaries : Path
        Folder with the servers.
    data : Path
        Folder of this cluster alone.
    nodes : bool
        Whether there are nodes; without, pods stay that say they are bound to one.
    audit : bool
        Whether the API server writes ``audit.log``: one JSON line per request.

    Attributes
    ----------
    server : str
        URL of the API server.
    etcd : str
        URL of its store.
    token : str
        Bearer token of a cluster administrator.
    ca : Path
        Certificate authority of the API server.
    kubeconfig : Path
        Administrator's.
    kubelet_certificate, kubelet_client : Pair
        What a kubelet serves with, and what the API server presents to it.
    processes : dict of str to Popen
        The servers by name.
    """

    def __init__(self, binaries: Path, data: Path, *, nodes: bool = True, audit: bool = False) -> None:
        self._binaries = binaries
        self._data = data
        self._nodes = nodes
        self._audit = audit
        self._stack = ExitStack()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._flags: dict[str, list[str]] = {}
        data.mkdir(parents=True, exist_ok=True)
        authority = pki.Authority(data, "ca")
        self._front_proxy = pki.Authority(data, "front-proxy-ca")
        self.ca = authority.certificate
        hosts = ("127.0.0.1", "localhost", "10.96.0.1", "kubernetes.default.svc")
        self._serving = authority.issue("kube-apiserver", hosts=hosts)
        self.kubelet_certificate = authority.issue("kubelet", hosts=("127.0.0.1",))
        self.kubelet_client = authority.issue("kubelet-client", organization="system:masters")
        self._proxy_client = self._front_proxy.issue("front-proxy-client")
        self._ca_key = authority.key
        self._accounts = pki.service_account_keys(data)
        self.token = secrets.token_hex(16)
        self.server = self.etcd = ""
        self.kubeconfig = data / "kubeconfig"

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
        client, peer, secure = free_ports(3)
        self.server, self.etcd = f"https://127.0.0.1:{secure}", f"http://127.0.0.1:{client}"
        tokens = self._data / "tokens.csv"
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        self._run(ETCD, self._etcd_flags(client, peer))
        self._wait(ETCD, f"http://127.0.0.1:{client}/health")
        self._run("kube-apiserver", self._api_server_flags(client, secure, tokens))
        self._wait("kube-apiserver", f"{self.server}/readyz")
        self._run("kube-controller-manager", self._controller_manager_flags())
        self._run("kube-scheduler", self._client_flags())

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Kill the API server, and start it again after the block, and then the controllers, which otherwise end with their Lease."""
        server, controllers = "kube-apiserver", "kube-controller-manager"
        for name in (controllers, server):
            end(self.processes[name], 0.0)
        yield
        self._run(server, self._flags[server])
        self._wait(server, f"{self.server}/readyz")
        self._run(controllers, self._flags[controllers])

    def restart_api_server(self) -> None:
        """Kill the API server and start it again."""
        with self.without_api_server():
            pass

    def _run(self, name: str, flags: list[str]) -> None:
        self._flags[name] = flags
        log = self._data / f"{name}.log"
        process = spawn([self._binaries / name, *flags], log=log, env=os.environ | _GO)
        self.processes[name] = process
        self._stack.callback(end, process)

    def _etcd_flags(self, client: int, peer: int) -> list[str]:
        url, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        return [
            f"--data-dir={self._data / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
        ]

    def _api_server_flags(self, client: int, secure: int, tokens: Path) -> list[str]:
        flags = [
            f"--etcd-servers=http://127.0.0.1:{client}",
            f"--secure-port={secure}",
            "--bind-address=127.0.0.1",
            f"--service-cluster-ip-range={_SERVICE_RANGE}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={tokens}",
            f"--client-ca-file={self.ca}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--kubelet-client-certificate={self.kubelet_client.certificate}",
            f"--kubelet-client-key={self.kubelet_client.key}",
            f"--kubelet-certificate-authority={self.ca}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._accounts.certificate}",
            f"--service-account-signing-key-file={self._accounts.key}",
            f"--requestheader-client-ca-file={self._front_proxy.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self._proxy_client.certificate}",
            f"--proxy-client-key-file={self._proxy_client.key}",
        ]
        if self._audit:
            policy = self._data / "audit-policy.json"
            rules = [{"level": "Metadata", "omitStages": ["RequestReceived"]}]
            policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
            flags += [
                f"--audit-policy-file={policy}",
                f"--audit-log-path={self.audit_log}",
                "--audit-log-mode=blocking",
            ]
        return flags

    @property
    def audit_log(self) -> Path:
        """Where the API server writes its audit log."""
        return self._data / "audit.log"

    def _controller_manager_flags(self) -> list[str]:
        return [
            *self._client_flags(),
            f"--controllers={_CONTROLLERS}{'' if self._nodes else _POD_COLLECTOR}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._accounts.key}",
            f"--root-ca-file={self.ca}",
            f"--cluster-signing-cert-file={self.ca}",
            f"--cluster-signing-key-file={self._ca_key}",
        ]

    def _client_flags(self) -> list[str]:
        """Return what the scheduler and the controller manager have in common."""
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
        ]

    def _kubeconfig(self) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "eldr",
            "contexts": [
                {"name": "eldr", "context": {"cluster": "eldr", "user": "admin", "namespace": "default"}}
            ],
            "clusters": [
                {"name": "eldr", "cluster": {"server": self.server, "certificate-authority": str(self.ca)}}
            ],
            "users": [{"name": "admin", "user": {"token": self.token}}],
        }

    def _wait(self, name: str, url: str) -> None:
        context = ssl.create_default_context(cafile=str(self.ca)) if url.startswith("https") else None
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.processes[name].poll() is not None:
                break
            try:
                with urllib.request.urlopen(request, timeout=5, context=context):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        tail = "\n".join((self._data / f"{name}.log").read_text(errors="replace").splitlines()[-12:])
        raise ControlPlaneError(f"{name} is not ready after {READY_SECONDS:.0f} s:\n{tail}")
