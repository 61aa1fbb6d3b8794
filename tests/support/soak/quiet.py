"""What must be true of routers once all is quiet: nothing in flight, nothing held, nothing leaked."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import httpx

from tests.support.router import Router
from tests.support.soak.plan import Reload, usual
from tests.support.soak.stage import Stage, connections, files

_SETTLE = 30.0
_BAD_LINES = re.compile(r"Traceback|ERROR|CRITICAL|never retrieved|never awaited|Exception")
_ROUNDS = 20


def problems(stage: Stage, files_before: list[int]) -> list[str]:
    """Look at every router, and at what the processes printed."""
    stage.configure(usual())
    found: list[str] = []
    for index, router in enumerate(stage.routers):
        if router.process.poll() is not None:
            found.append(f"router{index} is dead: {router.process.returncode}")
            continue
        found += [f"router{index}: {problem}" for problem in _of_router(stage, router, files_before[index])]
    found += _room(stage) if not found else []
    for index in range(len(stage.routers)):
        lines = stage.log(index).read_text(errors="replace").splitlines()
        bad = [line for line in lines if " request {" not in line and _BAD_LINES.search(line)]
        found += [f"router{index} printed: {line[:300]}" for line in bad[:5]]
    for engine in stage.engines.values():
        if "freed twice" in engine.log.read_text(errors="replace"):
            found.append(f"{engine.name}: KV blocks were freed twice")
    return found


def _of_router(stage: Stage, router: Router, files_before: int) -> list[str]:
    found = []
    if not _within(_SETTLE, lambda: router.in_flight() == 0):
        found.append(f"requests stay in flight: {router.loads()}")
    if not _within(_SETTLE, lambda: all(e["total"] == 0 for e in router.state()["decode"])):
        found.append(f"requests of all routers stay in flight: {router.state()['decode']}")
    if not _within(_SETTLE, lambda: all(e["healthy"] for e in router.state()["decode"])):
        found.append(f"engines that are well get no requests: {router.state()['decode']}")
    held = metric(router, "eldr_router_body_bytes")
    if held:
        found.append(f"bodies are held: {held:.0f} bytes")
    allowed = files_before + 2 * len(stage.engines)
    pid = router.process.pid
    if not _within(_SETTLE, lambda: len(files(pid)) <= allowed):
        found.append(f"{len(files(pid))} files are open, {files_before} were before: {sorted(files(pid))}")
    return found + _reuse(stage, router)


def _reuse(stage: Stage, router: Router) -> list[str]:
    """A request leaves its two connections to engines open, for the next one."""
    ports = {int(engine.url.rsplit(":", 1)[1]) for engine in stage.engines.values()}
    body = {"model": "m", "prompt": "quiet", "max_tokens": 1}
    resting = []
    with httpx.Client(timeout=120) as client:
        for _ in range(_ROUNDS):
            client.post(f"{router.url}/v1/completions", json=body).raise_for_status()
            resting.append(connections(router.process.pid, ports))
    if sorted(resting)[_ROUNDS // 2] < 2:
        return [f"connections to engines are not kept: {resting} were open after each request"]
    return []


def _room(stage: Stage) -> list[str]:
    """With one place at each engine a router has so many places: an admission that leaked takes one for ever."""
    stage.configure(Reload(0.0, fields={**usual().fields, "max_in_flight": 1}))
    found = []
    for index, router in enumerate(stage.routers):
        body = {"model": "m", "prompt": "room", "max_tokens": 300, "stream": True}
        places = len(stage.names("d"))
        url = f"{router.url}/v1/completions"
        if not _within(
            _SETTLE, lambda r=router: all((e["bound"], e["total"]) == (1, 0) for e in r.state()["decode"])
        ):
            found.append(f"router{index}: one place at each engine is not free: {router.state()['decode']}")
        with httpx.Client(timeout=120) as client:
            open_ = []
            try:
                for _ in range(places):
                    request = client.build_request("POST", url, json=body)
                    open_.append(client.send(request, stream=True))
                statuses = [answer.status_code for answer in open_]
                over = client.post(url, json=body | {"stream": False, "max_tokens": 1}).status_code
            finally:
                for answer in open_:
                    answer.close()
        if statuses != [200] * places or over != 429:
            found.append(f"router{index}: {places} places are not so many: {statuses}, then {over}")
        _within(_SETTLE, lambda r=router: r.in_flight() == 0)
    stage.configure(usual())
    return found


def metric(router: Router, name: str) -> float:
    """Return a metric without labels."""
    lines = httpx.get(f"{router.admin}/metrics", timeout=120).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def request_lines(stage: Stage, name: str) -> list[str]:
    """Return what the routers logged of a request."""
    wanted = f'"client_id":{json.dumps(name)}'
    found = []
    for index in range(len(stage.routers)):
        with stage.log(index).open(errors="replace") as lines:
            found += [f"router{index}: {line.strip()}" for line in lines if wanted in line]
    return found


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.25)
    return True
