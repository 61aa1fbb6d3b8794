"""API servers that write down who asks them, and under which name."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from eldr_kube.pki import Authority, Pair

Seen = dict[str, object]


@contextmanager
def recording(
    name: str, seen: list[Seen], authority: Authority | None = None, pair: Pair | None = None
) -> Iterator[str]:
    """Serve on a free port of this machine; yields the URL.

    Parameters
    ----------
    name : str
        Of this server, in what is seen.
    seen : list of dict
        Takes a request each.
    authority, pair : optional
        Serve TLS with this certificate, and ask clients for one of this authority.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            certificate = self.connection.getpeercert() if authority else None
            names = dict(pair for (pair,) in (certificate or {}).get("subject", ()))
            seen.append(
                {
                    "server": name,
                    "path": self.path,
                    "authorization": self.headers.get("authorization"),
                    "certificate": names.get("commonName"),
                    "name": asked.get(self.connection) if authority else None,
                }
            )
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    asked: dict[object, str | None] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if authority and pair:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
        context.load_cert_chain(pair.certificate, pair.key)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.sni_callback = lambda connection, host, _: asked.update({connection: host})
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"{'https' if authority else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
