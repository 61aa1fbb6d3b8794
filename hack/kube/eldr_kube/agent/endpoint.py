"""The kubelet's endpoint: what the API server asks of a node for ``kubectl logs`` and ``kubectl port-forward``."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from eldr_kube.agent.container import Container
from eldr_kube.agent.logs import log_file, read_log
from eldr_kube.processes import end, spawn


class Pod(Protocol):
    """What a request may be about."""

    @property
    def address(self) -> str:
        """Where its servers listen."""

    def container(self, name: str) -> Container | None:
        """Return a container by its name."""


Find = Callable[[str, str], Pod | None]
"""``find(namespace, pod)``."""


class Endpoint:
    """The program that speaks to the API server, and a server in threads of its own that tells it of pods.

    Call it from the main thread, as the program dies with the thread that started it.

    Parameters
    ----------
    program : Path
        ``node-endpoint``.
    find : callable
    certificate, key, ca : Path
        It serves with the first two and admits clients that ``ca`` has signed: the API server.
    folder : Path
        For a socket and a log.
    """

    def __init__(
        self, program: Path, find: Find, *, certificate: Path, key: Path, ca: Path, folder: Path
    ) -> None:
        self._folder = os.open(folder, os.O_DIRECTORY)
        agent = f"/proc/self/fd/{self._folder}/endpoint.sock"  # a socket's path has 108 bytes at most, a folder's may have more
        self._server = _Server(agent, _handler(find))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
            command = [program, "--listener", listener.fileno(), "--agent", agent]
            command += ["--certificate", certificate, "--key", key, "--ca", ca]
            self._program = spawn(
                [str(part) for part in command],
                log=folder / "endpoint.log",
                pass_fds=(listener.fileno(), self._folder),
            )

    def close(self) -> None:
        """Stop serving."""
        end(self._program)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        os.close(self._folder)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def _handler(find: Find) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30.0

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            kind, *parts = url.path.strip("/").split("/")
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            pod = find(*parts[:2]) if len(parts) in (2, 3) else None
            if kind == "containerLogs" and len(parts) == 3:
                self._logs(pod.container(parts[2]) if pod else None, query)
            elif kind != "address" or len(parts) != 2:
                self._answer(404, "the node agent serves logs and forwards ports, nothing else")
            elif pod is None:
                self._answer(404, "the node agent runs no such pod")
            else:
                self._answer(200, pod.address)

        def _logs(self, container: Container | None, query: Mapping[str, str]) -> None:
            path = (
                None if container is None else log_file(container, previous=query.get("previous") == "true")
            )
            if container is None:
                self._answer(404, "the node agent runs no such container")
            elif path is None:
                self._answer(400, "the container has not run yet, or not before")
            else:
                self._send(path, container, query)

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _send(self, path: Path, container: Container, query: Mapping[str, str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for data in read_log(path, container, query):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    return Handler
