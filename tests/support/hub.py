"""A small Hugging Face hub on loopback, as ``huggingface_hub`` asks it: one model, which may need a token.

References
----------
.. [1] huggingface_hub, ``HfApi.repo_info``, ``list_repo_tree``, ``get_hf_file_metadata`` and ``hf_raise_for_status``.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

MODEL = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "model.safetensors": b"weights" * 1000,
    "pytorch_model.bin": b"the same again" * 1000,
    "original/consolidated.safetensors": b"and again" * 1000,
}
_REVISIONS = {"main", "v1", COMMIT}


class Hub:
    """What it serves.

    Parameters
    ----------
    token : str
        Who does not send it gets 401; empty for everybody.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.url = ""

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        if not path.startswith((f"/api/models/{MODEL}", f"/{MODEL}/")):
            return _refused(404, "RepoNotFound", "Repository not found")
        if self.token and authorization != f"Bearer {self.token}":
            return _refused(401, "", "Invalid username or password.")
        if found := re.fullmatch(rf"/api/models/{MODEL}(?:/revision/(.+))?", path):
            return self._info(found[1] or "main")
        if found := re.fullmatch(rf"/api/models/{MODEL}/tree/([^/]+)/?", path):
            tree = [_entry(name, content) for name, content in FILES.items()]
            return _known(found[1]) or (200, {}, json.dumps(tree).encode())
        if found := re.fullmatch(rf"/{MODEL}/resolve/([^/]+)/(.+)", path):
            return _known(found[1]) or _file(found[2])
        return _refused(404, "EntryNotFound", "no such path")

    def _info(self, revision: str) -> tuple[int, dict[str, str], bytes]:
        siblings = [{"rfilename": name} for name in FILES]
        info = {
            "id": MODEL,
            "modelId": MODEL,
            "sha": COMMIT,
            "siblings": siblings,
            "tags": [],
            "private": False,
        }
        return _known(revision) or (200, {}, json.dumps(info).encode())


def _known(revision: str) -> tuple[int, dict[str, str], bytes] | None:
    return (
        None if revision in _REVISIONS else _refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    )


def _file(name: str) -> tuple[int, dict[str, str], bytes]:
    if name not in FILES:
        return _refused(404, "EntryNotFound", f"no file {name}")
    etag = hashlib.sha256(FILES[name]).hexdigest()
    return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, FILES[name]


def _entry(name: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": oid}


def _refused(status: int, code: str, text: str) -> tuple[int, dict[str, str], bytes]:
    headers = {"X-Error-Message": text} | ({"X-Error-Code": code} if code else {})
    return status, headers, json.dumps({"error": text}).encode()


@contextmanager
def hub(token: str = "") -> Iterator[Hub]:
    """Serve a hub at a port of its own."""
    made = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            status, headers, body = made.answer(path, self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
