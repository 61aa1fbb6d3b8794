"""One round of a soak, from the first process to the table."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from tests.support.soak import quiet
from tests.support.soak.asks import MANNERS, visit
from tests.support.soak.clients import Client
from tests.support.soak.director import Director
from tests.support.soak.flat import Growth, Sample, growth
from tests.support.soak.judge import Record, Verdict, Window, judge
from tests.support.soak.plan import disturbances, reloads
from tests.support.soak.stage import Stage

_SAMPLE_SECONDS = 1.0
_AROUND = 10.0
_SHOWN = 8
_LEAVE_SECONDS = 240.0
_LONGER_SECONDS = 90.0
"""So long after the disturbances a slow machine may take until every manner has had an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What is run.

    Attributes
    ----------
    folder : Path
        For logs; it stays.
    seed : int
    seconds : float
    routers, clients : int
    """

    folder: Path
    seed: int
    seconds: float
    routers: int = 1
    clients: int = 24


@dataclass(slots=True)
class Fault:
    """Something that must not be, and what is known of it."""

    problem: str
    details: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n    ".join([self.problem, *self.details])


@dataclass(slots=True)
class Report:
    """What a round showed."""

    round: Round
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    disturbances: Counter[str] = field(default_factory=Counter)
    growths: list[Growth] = field(default_factory=list)
    files: list[tuple[int, int, int]] = field(default_factory=list)


class Crowd:
    """Clients that come and go until time is up, and then until nobody lacks an answer.

    Parameters
    ----------
    round_ : Round
    ports : list of int
        Of the routers.
    report : callable
        Takes every record.
    lacking : callable
        Returns the manners of clients that got no answer so far.
    """

    def __init__(
        self,
        round_: Round,
        ports: list[int],
        report: Callable[[Record], None],
        lacking: Callable[[], list[str]],
    ) -> None:
        self._round = round_
        self._lacking = lacking
        self._ports = ports
        self._report = report
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Perform visits; whoever began one finishes it."""
        until = time.monotonic() + self._round.seconds
        async with asyncio.TaskGroup() as group:
            for client in range(self._round.clients):
                group.create_task(self._come(client, until))

    async def _come(self, client: int, until: float) -> None:
        rng = random.Random(f"{self._round.seed} client {client}")
        while (now := time.monotonic()) < until or (now < until + _LONGER_SECONDS and self._lacking()):
            one = visit(rng, next(self._numbers))
            await Client(rng.choice(self._ports), one, self._report).perform()
            await asyncio.sleep(rng.uniform(0.0, 0.2))


def run(round_: Round) -> Report:
    """Run one round."""
    with Stage(round_.folder, routers=round_.routers) as stage:
        report = uvloop.run(_run(round_, stage))
    (round_.folder / "faults.txt").write_text("\n\n".join(map(str, report.faults)))
    return report


async def _run(round_: Round, stage: Stage) -> Report:
    report = Report(round_)
    director = Director(stage)
    suspects: list[tuple[Record, Verdict]] = []

    def take(record: Record) -> None:
        verdict = judge(record, director.windows)
        report.outcomes[record.manner, verdict.outcome] += 1
        if verdict.problem:
            suspects.append((record, verdict))

    def lacking() -> list[str]:
        expect_none = ("stall", "leave")
        return [one for one in MANNERS if one not in expect_none and not report.outcomes[one, "ok"]]

    files_before = [sample.files for sample in stage.samples(0.0)]
    samples: list[list[Sample]] = [[] for _ in stage.routers]
    sampling = asyncio.create_task(_sample(stage, samples))
    rng = random.Random(f"{round_.seed} plan")
    prefill, decode = stage.names("p"), stage.names("d")
    try:
        async with asyncio.timeout(round_.seconds + _LEAVE_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(Crowd(round_, stage.ports, take, lacking).run())
            group.create_task(director.disturb(disturbances(rng, round_.seconds, prefill, decode)))
            group.create_task(director.reload(reloads(rng, round_.seconds, prefill, decode)))
    except (TimeoutError, ExceptionGroup) as error:
        report.faults.append(Fault("the round did not come to its end", traceback.format_exception(error)))
        stage.freeze(thaw=True)
    sampling.cancel()
    events = "\n".join(f"{_clock(w.began)}..{_clock(w.ended)} {w.kind}: {w.what}" for w in director.windows)
    (round_.folder / "events.txt").write_text(events)
    report.disturbances = director.done
    problems = await asyncio.to_thread(quiet.problems, stage, files_before)
    report.faults += [Fault(problem) for problem in problems]
    for index, (own, after) in enumerate(zip(samples, stage.samples(round_.seconds), strict=True)):
        grown = growth(own, round_.seconds)
        report.growths.append(grown)
        report.files.append((files_before[index], max(s.files for s in own), after.files))
        if grown.problem:
            report.faults.append(Fault(f"router{index}: {grown.problem}"))
    report.faults += [_fault(stage, director.windows, *suspect) for suspect in suspects[:_SHOWN]]
    report.faults += [Fault(f"{v.outcome}: {r.ask.name}") for r, v in suspects[_SHOWN:]]
    report.faults += [
        Fault(f"nobody who is {manner} got an answer: the soak shows nothing of them") for manner in lacking()
    ]
    return report


async def _sample(stage: Stage, samples: list[list[Sample]]) -> None:
    began = time.monotonic()
    while True:
        for own, sample in zip(samples, stage.samples(time.monotonic() - began), strict=True):
            own.append(sample)
        await asyncio.sleep(_SAMPLE_SECONDS)


def _fault(stage: Stage, windows: list[Window], record: Record, verdict: Verdict) -> Fault:
    ask, began = record.ask, record.began
    details = [
        f"{record.manner}: {ask.method} {ask.path} stream={ask.stream} choices={len(ask.prompts)} tokens={ask.tokens}",
        f"began {_clock(began)}, ended {_clock(record.ended)} ({record.end}), first byte after {record.first:.2f} s",
    ]
    if record.answer is not None:
        details.append(f"answered {record.answer.status} {record.answer.headers}")
    details += quiet.request_lines(stage, ask.name) or ["no router logged it"]
    details += [
        f"{_clock(w.began)}..{_clock(w.ended)} {w.kind}: {w.what}"
        for w in windows
        if w.began < record.ended + _AROUND and w.ended > began - _AROUND
    ]
    return Fault(f"{verdict.outcome}: {ask.name}: {verdict.problem}", details)


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "..."
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f"{seconds % 1:.3f}"[1:]
