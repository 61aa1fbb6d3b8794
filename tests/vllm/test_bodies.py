"""One request becomes two bodies: what this vLLM accepts, both legs are; what it refuses is not prefilled. Needs no engine."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from eldr.contract import KV_KEY
from eldr_router.api import bodies as plan
from eldr_router.http.errors import RouterError
from tests.vllm.bodies import bodies

MODELS = Path(__file__).parent / "engine_side" / "eldr_test_bodies.py"
STRICT = Path("docs/reference/openai.md")
PULL = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e", "remote_request_id": "r",
    "remote_block_ids": [[1]], "remote_host": "h", "remote_port": 1, "tp_size": 1,
}  # fmt: skip
OWN = {"request_id"}
"""What the router sets itself, so that a client's value reaches no engine."""


@dataclass
class Case:
    """A body, and what the router and this vLLM make of it; None for what nobody refuses."""

    path: str
    fields: dict
    refused: RouterError | None = None
    legs: list[bytes] | None = None
    whole_said: str | None = None
    legs_said: list[str | None] | None = None

    def __str__(self) -> str:
        said = [text and " ".join(text.split())[:200] for text in (self.whole_said, *(self.legs_said or ()))]
        return f"{self.path} {json.dumps(self.fields)}: router {self.refused}, engine {said}"


def legs(path: str, raw: bytes) -> list[bytes]:
    """Return what engines get of a request that is split, the prefill first; the one body of one that is not."""
    body = plan.parse(raw, path)
    if plan.unsplittable(body) is not None:
        return [plan.decode_body(body, None, request_id="x")]
    decode = plan.decode_body(body, PULL, 5.0, "x")
    return [plan.prefill_body(body, "x"), decode]


@pytest.fixture(scope="module")
def cases(environment) -> list[Case]:
    found, asked = [], []
    for path, body, fields in bodies():
        raw = json.dumps(body).encode()
        case = Case(path, fields)
        try:
            case.legs = legs(path, raw)
        except RouterError as error:
            case.refused = error
        asked += [{"path": path, "body": each.decode()} for each in (raw, *(case.legs or ()))]
        found.append(case)
    lines = "\n".join(map(json.dumps, asked))
    ran = subprocess.run(  # noqa: PLW1510 - what it said before it failed is shown
        [environment / "bin" / "python", MODELS], input=lines, capture_output=True, text=True, timeout=500
    )
    said = iter([json.loads(line) for line in ran.stdout.splitlines()])
    for case in found:
        case.whole_said = next(said, "the engine's models ended early: " + ran.stderr[-500:])
        case.legs_said = [next(said) for _ in case.legs or ()]
    return found


def test_the_models_tell_right_from_wrong(cases):
    assert len(cases) > 400
    assert 100 < sum(case.whole_said is not None for case in cases) < len(cases) / 2


def test_what_the_engine_accepts_both_legs_are(cases):
    wrong = [case for case in cases if case.whole_said is None and any(case.legs_said)]
    assert not wrong, "\n".join(map(str, wrong))


def test_what_the_engine_refuses_is_not_prefilled(cases):
    """Else the prompt is computed for nothing, and its KV waits for an engine that never comes."""
    wrong = [
        case
        for case in cases
        if case.whole_said is not None and case.legs_said and case.legs_said[0] is None and not OWN & case.fields.keys()
    ]  # fmt: skip
    assert not wrong, "\n".join(map(str, wrong))


def test_what_only_the_router_refuses_is_documented(cases):
    strict = STRICT.read_text()
    refused = [case for case in cases if case.whole_said is None and case.refused is not None]
    assert refused
    wrong = [case for case in refused if f"`{case.refused.param}" not in strict or case.refused.status != 400]
    assert not wrong, "\n".join(map(str, wrong))
    assert all(KV_KEY not in case.fields for case in cases)
