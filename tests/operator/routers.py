"""Pretend routers: they answer as a router does that follows the routing ConfigMap."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eldr import contract
from tests.support.kube import Kube, Refused


class RouterState:
    """What a router answers.

    ``holding`` keeps it from loading what is staged, ``refuse`` maps digests to reasons, ``samples`` fills its log,
    ``signatures`` counts prefill answers by quality, ``step_time`` is the step-time model it has learned. ``kinds`` come with every look:
    (best similarity, slot, how many requests); ``saving`` is what it has measured. ``told`` lists epoch and policy of the
    routing tables that it has seen. ``is_deaf`` lets it answer nobody, as behind a NetworkPolicy. The token is that of the Secret, or the
    last one if there is none. ``problem`` is what it cannot follow, ``decode`` the decode engines that it sees.
    """

    address = ""

    def __init__(self, kube: Kube, deployment: str) -> None:
        self.kube = kube
        self.deployment = deployment
        self.samples = 0
        self.signatures: dict[str, int] = {}
        self.step_time: dict[str, Any] | None = None
        self.refuse: dict[str, str] = {}
        self.is_holding = False
        self.kinds: tuple[tuple[float, int, int], ...] = ()
        self.saving: dict[str, float] | None = None
        self.told: list[tuple[int, str]] = []
        self._traffic: dict[str, Any] | None = None
        self.is_deaf = False
        self.problem: str | None = None
        self.decode: list[dict[str, Any]] = [{"name": f"{deployment}-decode-0", "healthy": True}]
        self._token = self._read_token()
        self._active: dict[str, Any] | None = None

    def close(self) -> None:
        """End."""

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if self.is_deaf:
            return 503, b"{}"
        with contextlib.suppress(Refused):
            self._token = self._read_token()
        if authorization != f"Bearer {self._token}":
            return 401, b"{}"
        if path == contract.PATH_STATE:
            return 200, json.dumps(self.answer_state()).encode()
        if path == contract.PATH_SIGLOG:
            return 200, self.answer_log()
        return 404, b"{}"

    def answer_log(self) -> bytes:
        return b""

    def _read_token(self) -> str:
        secret = self.kube.get("Secret", contract.admin_secret_name(self.deployment))
        return base64.b64decode(secret["data"][contract.SECRET_TOKEN_KEY]).decode()

    def answer_state(self) -> dict[str, Any]:
        data = self.kube.get("ConfigMap", contract.routing_name(self.deployment))["data"]
        routing = json.loads(data[contract.ROUTING_KEY])
        wanted, staged = routing["active"], routing["staged"]
        if (told := (routing["epoch"], routing["policy"])) not in self.told[-1:]:
            self.told.append(told)
        if wanted and wanted["digest"] not in self.refuse and not self.is_holding:
            self._active = wanted
        loads = staged and staged["digest"] not in self.refuse and not self.is_holding
        refused = [
            {"fit": found["fit"], "digest": found["digest"], "reason": self.refuse[found["digest"]]}
            for found in (wanted, staged)
            if found and found["digest"] in self.refuse
        ]
        return {
            "v": contract.STATE_VERSION,
            "router": "0a1b2c3d",
            "epoch": routing["epoch"],
            "policy": "JSQ" if routing["policy"] == "ELDR" and not self._active else routing["policy"],
            "ready": True,
            "draining": False,
            "active": _short(self._active),
            "staged": _short(staged if loads else None),
            "refused": refused,
            "samples": self.samples,
            "problem": self.problem,
            "prefill": [],
            "decode": self.decode,
            "step_time": self.step_time,
            "traffic": self._count(routing["epoch"]),
            "saving": self.saving,
            "counters": {
                contract.signature_counter(quality): float(count)
                for quality, count in self.signatures.items()
            },
        }

    def _count(self, epoch: int) -> dict[str, Any] | None:
        """Count the requests since the look before."""
        active = self._active
        if active is None:
            return None
        before = self._traffic
        if before is None or (before["epoch"], before["digest"]) != (epoch, active["digest"]):
            before = {
                "epoch": epoch,
                "digest": active["digest"],
                "requests": 0,
                "outside_band": 0,
                "logged": 0,
            }
            before |= {"similarity": [0] * contract.SIMILARITY_BINS, "clusters": [0] * active["k"]}
        self._traffic = before
        for similarity, slot, requests in self.kinds:
            before["requests"] += requests
            before["logged"] += requests
            before["similarity"][int(similarity * contract.SIMILARITY_BINS)] += requests
            before["clusters"][slot % active["k"]] += requests
        return before


class PretendRouter(RouterState):
    """Serves it on a loopback address of its own."""

    def __init__(self, kube: Kube, deployment: str) -> None:
        super().__init__(kube, deployment)
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, payload = router.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: object) -> None:
                pass

        self.address, self._server = _listen(Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _short(pointer: dict[str, Any] | None) -> dict[str, Any] | None:
    return pointer and {"fit": pointer["fit"], "digest": pointer["digest"]}


def _listen(handler: type[BaseHTTPRequestHandler]) -> tuple[str, ThreadingHTTPServer]:
    # The admin port is fixed, so every router needs an address of its own: one of 127.64.0.0/10.
    for _ in range(50):
        address = f"127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
        try:
            return address, ThreadingHTTPServer((address, contract.PORT_ADMIN), handler)
        except OSError:
            continue
    raise OSError("no free loopback address")
