"""The kubelet's log endpoint: what ``kubectl logs`` reads."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from eldr_kube.agent.container import Container

Find = Callable[[str, str, str], Container | None]
"""``find(namespace, pod, container)``."""

FOLLOW_SECONDS = 0.1
_CHUNK = 1 << 16


class LogServer:
    """HTTPS server in threads of its own.

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
        # The handshake belongs into the connection's thread, where a silent client holds up nobody.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(find: Find) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30.0

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            parts = url.path.strip("/").split("/")
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            container = find(*parts[1:]) if len(parts) == 4 and parts[0] == "containerLogs" else None
            path = (
                None if container is None else log_file(container, previous=query.get("previous") == "true")
            )
            if container is None:
                self._refuse(404, "the node agent runs no such container")
            elif path is None:
                self._refuse(400, "the container has not run yet, or not before")
            else:
                self._send(path, container, query)

        def _refuse(self, status: int, text: str) -> None:
            body = f"{text}\n".encode()
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


def log_file(container: Container, *, previous: bool) -> Path | None:
    """Return the log of a container's current run, or of the one before, if there is one."""
    attempt = container.state.restarts
    # While a container waits for its restart, the run that ended last is both the current and the previous one.
    if previous and "waiting" not in container.state.current:
        attempt -= 1
    path = container.log(attempt)
    return path if attempt >= 0 and path.exists() else None


def read_log(path: Path, container: Container, query: Mapping[str, str]) -> Iterator[bytes]:
    """Yield a log's bytes, with ``follow`` until that run of the container has ended.

    ``sinceSeconds`` is known for the whole file only: lines carry no times.
    """
    since = float(query.get("sinceSeconds", "inf"))
    follow = query.get("follow") == "true"
    left = int(query.get("limitBytes", 1 << 62))
    with path.open("rb") as file:
        if time.time() - path.stat().st_mtime > since:
            file.seek(0, 2)
        elif "tailLines" in query:
            file.seek(tail_offset(path, int(query["tailLines"])))
        while left > 0:
            running = container.state.running and container.log(container.state.restarts) == path
            while data := file.read(min(_CHUNK, left)):
                left -= len(data)
                yield data
            if not (follow and running):
                return
            time.sleep(FOLLOW_SECONDS)


def tail_offset(path: Path, lines: int) -> int:
    """Return where the last ``lines`` lines of a file begin."""
    size = position = path.stat().st_size
    if lines <= 0:
        return size
    found = 0
    with path.open("rb") as file:
        while position > 0:
            start = max(0, position - _CHUNK)
            file.seek(start)
            block = file.read(position - start)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                # The newline that ends the file ends the last line and begins none.
                found += start + at + 1 < size
                if found == lines:
                    return start + at + 1
            position = start
    return 0
