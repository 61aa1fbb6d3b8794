"""Real engines serve on, token for token, whichever of our functions fails, on whichever rank; and say why they count no more."""

import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import httpx
import pytest

from eldr import contract
from tests.support.processes import wait_for
from tests.vllm.engines import NAME, Engine, Setup
from tests.vllm.fleet import serving
from tests.vllm.pair import Pair

PROMPT = list(range(300, 360))
TOKENS = 12
CAPTURE = "eldr.engine.capture"
ON_ALL_RANKS = (
    *(f"{CAPTURE}.routing:StepSlots.{name}" for name in ("bind", "take")),
    f"{CAPTURE}.routing:_Capturer._column",
)
EVERYWHERE = (
    *ON_ALL_RANKS,
    *(f"{CAPTURE}.routing:RoutingCapture.{name}" for name in ("begin", "expert_ids")),
    "eldr.engine.messages:encode_counts",
)
PREFILL = (*EVERYWHERE, "eldr.engine.worker:Worker._sum")
DECODE = (
    *EVERYWHERE,
    f"{CAPTURE}.routing:RoutingCapture.end",
    f"{CAPTURE}.kernels:count_step",
    "eldr.engine.decode.tracking:Tracker.step",
)
SHORT = ("_Capturer._column", "encode_counts")
"""Of these, what ``make e2e-vllm`` has fail; ``tests/engine/test_hooks.py`` has every function fail, without a model."""
SOON = 10.0
"""Seconds that requests may take beyond twice what they did just before, so that no rank waited for another one's failure."""


class Layout(NamedTuple):
    """How many ranks an engine has, and which of them see a step that one request is in."""

    arguments: tuple[str, ...]
    env: dict[str, str]
    ranks: int = 1


LAYOUTS = {
    "one": Layout((), {}),
    "tensor": Layout(("--tensor-parallel-size", "2"), {}, 2),
    "data": Layout(
        ("--data-parallel-size", "2", "--enable-expert-parallel"),
        {"ELDR_CPU_EXPERT_PARALLEL": "1"},
        2,
    ),
}


@dataclass
class Faulty:
    """A pair whose functions can be made to fail."""

    layout: Layout
    engines: tuple[Engine, Engine]
    pair: Pair

    def ask(self) -> list[list[int]]:
        """Serve a request for each rank at once, so that every rank has one; return their tokens."""
        with ThreadPoolExecutor(self.layout.ranks) as pool:
            named = self.layout is LAYOUTS["data"]  # the others' ranks are one to a client
            pairs = [replace(self.pair, rank=rank if named else None) for rank in range(self.layout.ranks)]
            asked = [pool.submit(pair.ask, PROMPT, TOKENS) for pair in pairs]
            return [one.result().generated for one in asked]

    def serves(
        self, engine: Engine, rank: int, target: str, expected: list[list[int]], *, within: float
    ) -> bool:
        """Have a function fail, and serve two rounds and one more when it is whole again; tell whether that took no longer."""
        break_(engine, rank, target)
        begun = time.monotonic()
        try:
            for _ in range(2):
                assert self.ask() == expected
            took = time.monotonic() - begun
        finally:  # what fails here must not fail the cases behind it
            (engine.gate / "fault").unlink()
        assert self.ask() == expected
        return took < within


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(layout, id=name, marks=() if name == "one" else pytest.mark.long)
        for name, layout in LAYOUTS.items()
    ],
)
def faulty(request, environment, plugin, tmp_path_factory) -> Iterator[Faulty]:
    layout: Layout = request.param
    folder = tmp_path_factory.mktemp("faults")
    setup = Setup(
        role="prefill",
        plugin=plugin,
        max_len=512,
        children=("Fault",),
        arguments=layout.arguments,
        env=layout.env,
    )
    engines = tuple(
        Engine(f"{role}-fault", replace(setup, role=role), environment, folder)
        for role in ("prefill", "decode")
    )
    with serving(*engines):
        pair = Pair(engines[0].url, engines[1].url, NAME)
        yield Faulty(layout, engines, pair)


def break_(engine: Engine, rank: int, target: str) -> None:
    """Have a function fail from the next step on; the engine may look for the file at any time."""
    whole = engine.gate / "fault.written"
    whole.write_text(f"{rank} {target}")
    whole.rename(engine.gate / "fault")


def signature(engine: Engine) -> dict[str, Any]:
    """Return what a prefill engine says of the experts of a prompt."""
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 1, contract.KV_KEY: {"do_remote_decode": True}}
    answer = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()[contract.KV_KEY][contract.ELDR_KEY]
    return said


def test_both_engines_say_why_they_count_no_more(faulty):
    if faulty.layout.ranks > 1:
        pytest.skip("one rank says why")
    targets = (f"{CAPTURE}.kernels:count_blocks", f"{CAPTURE}.kernels:count_step")
    records = f"{contract.METRIC_RECORDS}_total"
    expected = faulty.ask()
    for engine, target in zip(faulty.engines, targets, strict=True):
        wait_for(lambda e=engine: e.metric(records, result="exact") > 0, f"{engine.name} to count", 30)
        break_(engine, 0, target)
    exact = [engine.metric(records, result="exact") for engine in faulty.engines]
    for _ in range(3):
        assert faulty.ask() == expected
    assert (
        signature(faulty.engines[0])["unavailable"] == f"counting failed: RuntimeError('{targets[0]} fails')"
    )
    for engine, before in zip(faulty.engines, exact, strict=True):
        wait_for(lambda e=engine: e.metric(records, result="unavailable") >= 2, f"{engine.name} to tell", 30)
        assert engine.metric(contract.METRIC_COUNTING) == 0
        assert engine.metric(records, result="exact") == before
        assert engine.log.read_text().count("ELDR: counting failed") == 1
        (engine.gate / "fault").unlink()
    assert faulty.ask() == expected


def cases() -> Iterator[Any]:
    for role, targets in (("prefill", PREFILL), ("decode", DECODE)):
        for target in targets:
            name = target.partition(":")[2]
            yield pytest.param(
                role, target, id=f"{role}-{name}", marks=() if name in SHORT else pytest.mark.long
            )


@pytest.mark.filterwarnings("default:slow once")
@pytest.mark.parametrize(("role", "target"), list(cases()))
def test_an_engine_serves_on_whatever_fails_on_whichever_rank(faulty, role, target):
    """The expected tokens are those of a request before: counting changes none."""
    engine = faulty.engines[role == "decode"]
    ranks = range(faulty.layout.ranks)
    if faulty.layout is LAYOUTS["tensor"]:  # the second rank counts nothing, and there is one scheduler
        ranks = range(1) if target not in ON_ALL_RANKS else ranks
    expected = faulty.ask()
    for rank in ranks:
        begun = time.monotonic()
        for _ in range(2):
            faulty.ask()
        usual = time.monotonic() - begun
        since = [len(one.log.read_text()) for one in faulty.engines]
        # a rank that waits for one that failed does so each time; a pull that comes late, once in hundreds of runs
        tries = iter(range(2))
        while not faulty.serves(engine, rank, target, expected, within=2 * usual + SOON):
            logs = [one.log.read_text()[begin:] for one, begin in zip(faulty.engines, since, strict=True)]
            assert next(tries) == 0, f"rank {rank} failed, and a rank waited for it:\n" + "\n".join(logs)
            warnings.warn(f"slow once, after rank {rank} failed:\n" + "\n".join(logs), stacklevel=1)
        told = engine.log.read_text()[since[role == "decode"] :]
        assert f"RuntimeError('{target} fails')" in told, f"{target} never ran on rank {rank}"
        assert httpx.get(f"{engine.url}/health", timeout=10).status_code == 200
