"""The kubelet's log endpoint: what ``kubectl logs`` reads."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from eldr_kube.agent.container import Container

Find = Callable[[str, str, str], Container | None]
"""``find(namespace, pod, container)``."""


class LogServer:
    """HTTPS server in a thread of its own.

    Parameters
    ----------
    find : callable
    certificate, key, ca : Path
        It serves with the first two and admits clients that ``ca`` has signed: the API server.
    """

    def __init__(self, find: Find, certificate: Path, key: Path, ca: Path) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(find))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _handler(find: Find) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            parts = url.path.strip("/").split("/")
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            container = find(*parts[1:]) if len(parts) == 4 and parts[0] == "containerLogs" else None
            if container is None:
                self.send_error(404, "no such container here")
                return
            previous = query.get("previous") == "true"
            path = container.log(container.restarts - 1 if previous else container.restarts)
            if not path.exists():
                self.send_error(400, "the container has not started yet")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            follow = query.get("follow") == "true" and not previous
            try:
                for data in read_log(path, container, follow=follow, tail=query.get("tailLines")):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    return Handler


def read_log(path: Path, container: Container, *, follow: bool, tail: str | None) -> Iterator[bytes]:
    """Yield a log file's bytes; with ``follow`` until the container has ended."""
    with path.open("rb") as file:
        if tail is not None:
            lines = file.read().splitlines(keepends=True)
            kept = b"".join(lines[max(0, len(lines) - int(tail)) :]) if int(tail) else b""
            if kept:
                yield kept
        while True:
            running = container.log(container.restarts) == path and container.exit_code is None
            while data := file.read(1 << 16):
                yield data
            if not (follow and running):
                return
            time.sleep(0.1)
