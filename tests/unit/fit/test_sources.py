import http.server
import threading

import pytest

from eldr.fit.samples import FitError
from eldr.fit.sources import from_routers
from eldr.siglog import frame


@pytest.fixture
def serve():
    servers = []

    def start(body: bytes, token: str = "t") -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                allowed = (
                    self.headers["authorization"] == f"Bearer {token}" and self.path == "/eldr/v1/siglog"
                )
                self.send_response(200 if allowed else 401)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_all_routers_are_read(serve, records):
    urls = [serve(b"".join(frame(r) for r in part)) for part in (records[:5], records[5:9])]
    report: dict[str, str] = {}
    assert list(from_routers(urls, "t", report)) == records[:9]
    assert report == {}


@pytest.mark.slow
def test_a_lost_router_is_left_out_and_a_damaged_tail_reported(serve, records):
    good = serve(frame(records[0]) + b"\xff" * 40)
    dead = "http://127.0.0.1:1"
    report: dict[str, str] = {}
    assert list(from_routers([dead, good], "t", report)) == records[:1]
    assert "ConnectError" in report[dead]
    assert "read up to byte" in report[good]


def test_no_router_at_all_is_an_error(serve, records):
    refuses = serve(frame(records[0]), token="other")
    with pytest.raises(FitError, match="401") as caught:
        list(from_routers([refuses], "t", {}))
    assert caught.value.reason == "RoutersUnreachable"
