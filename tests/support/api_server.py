"""A server that plays the Kubernetes API, and the kubeconfig that leads to it."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml


@contextmanager
def answering(
    answer: Callable[[str], tuple[int, str]], kubeconfig: Path
) -> Iterator[list[tuple[str, object]]]:
    """Serve GET, PATCH and POST requests on a free port while the block runs; yields path and body of each that has one.

    Parameters
    ----------
    answer : callable
        From the path, without its query, to status and body.
    kubeconfig : Path
        Written for it: context ``here`` of namespace ``team``, and ``elsewhere`` of none.
    """

    taken: list[tuple[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append((self.path, json.loads(body)))
            self.do_GET()

        do_POST = do_PATCH

        def do_GET(self) -> None:
            status, body = answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "mine"}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "elsewhere", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield taken
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def knowing(answers: Mapping[str, tuple[int, str]], folder: Path) -> Iterator[list[tuple[str, object]]]:
    """Serve these answers by path, 404 for any other one; KUBECONFIG leads there while the block runs."""
    missing, config = (404, '{"kind": "Status", "message": "not found"}'), folder / "config"
    with (
        answering(lambda path: answers.get(path, missing), config) as taken,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("KUBECONFIG", str(config))
        yield taken


def as_json(found: object) -> tuple[int, str]:
    """Return an object as an answer."""
    return 200, json.dumps(found)
