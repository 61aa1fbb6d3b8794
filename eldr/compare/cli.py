"""The command ``eldr compare``."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from eldr import contract
from eldr.compare import report
from eldr.compare.cluster import Target
from eldr.compare.course import Course, windows
from eldr.compare.effect import LEAST
from eldr.compare.figures import FiguresError, typical_seconds
from eldr.compare.recovery import CompareError, refuse_or_recover
from eldr.compare.run import Comparison
from eldr.kubeconfig import ApiServer, ClusterError
from eldr.options import FiniteRange, of_cluster

_RIGHTS: Final = "a comparison takes get and patch of eldrdeployments, get of the Secret <name>-admin and of pods/proxy, and list of pods"
_UNKNOWN_SECONDS: Final = 30.0
"""Of a request, where routers have not seen one."""
_LEAST_SECONDS: Final = 5.0


class _Clock:
    """The machine's clock, and whether a signal has come."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    def now(self) -> float:
        return time.time()

    def wait(self, seconds: float) -> None:
        if self.stop.is_set():
            time.sleep(seconds)  # what is being restored may have to wait for the cluster
        self.stop.wait(seconds)

    def is_stopped(self) -> bool:
        return self.stop.is_set()


@click.command("compare", context_settings={"auto_envvar_prefix": "ELDR_COMPARE", "show_default": True})
@click.argument("name")
@of_cluster
@click.option(
    "--against", type=click.Choice(contract.POLICIES), help="The policy to compare the deployment's own with."
)
@click.option(
    "--hours", type=FiniteRange(0, 720, min_open=True), default=2.0, help="How long it takes altogether."
)
@click.option(
    "--window",
    type=FiniteRange(min=1),
    default=300.0,
    help="Seconds of a window with one policy, its start included.",
)
@click.option(
    "--carry-over",
    type=FiniteRange(min=0),
    help="Seconds at the start of a window that are not measured [default: as long as nine tenths of requests last].",
)
@click.option(
    "--seed", type=int, help="Decides which policy comes first in a pair [default: drawn, and shown]."
)
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
@click.option("--restore", is_flag=True, help="Only restore what a comparison left that was killed.")
def command(
    *,
    name: str,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
    against: str | None,
    hours: float,
    window: float,
    carry_over: float | None,
    seed: int | None,
    as_json: bool,
    restore: bool,
) -> None:
    """Measure what the policy of the EldrDeployment NAME brings against another one, on its own traffic.

    Sets the two policies in turn, in windows whose order within pairs is random, and shows how TPOT, TTFT and throughput
    differ. No pod restarts. The deployment's own policy is set again in the end, also after Ctrl-C. If the program is killed or
    loses the cluster, `eldr compare NAME --restore` does that.
    """
    if (against is None) != restore:
        raise click.UsageError("name the other policy by --against, or give --restore alone")
    clock = _Clock()
    try:
        file = str(kubeconfig) if kubeconfig else None
        with ApiServer(context, namespace, file, rights=_RIGHTS) as server, _stoppable(clock.stop):
            target = Target(server, name, clock.now)
            resource = target.read()
            _say(f"cluster: {server.cluster}")
            if against is None:
                if not refuse_or_recover(resource, target, clock, _say):
                    click.echo("nothing to restore")
                return
            seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed
            course = _course(target, hours, window, carry_over, seed)
            _compare(target, clock, against, course, seed, as_json=as_json)
    except (ClusterError, CompareError) as error:
        raise click.ClickException(f"{error.reason}: {error}") from error


def _compare(
    target: Target, clock: _Clock, against: str, course: Course, seed: int, *, as_json: bool
) -> None:
    window, carry_over = course.window_seconds, course.carry_over
    _say(
        f"against {against}: {len(course.windows)} windows of {window:g} s, the first {carry_over:g} s of each not measured, "
        f"seed {seed}; automatic fits, roll-backs and protection wait meanwhile"
    )
    comparison = Comparison(target, clock, against, say=_say, poll=min(2.0, window / 20))
    try:
        comparison.run(course)
    finally:
        # what was measured is worth showing also where it stopped
        order = [one.is_own for one in course.windows]
        outcome = report.report(comparison.measured, order, comparison.own, against, seed)
        if comparison.measured:
            said = (
                json.dumps(report.document(outcome), indent=2)
                if as_json
                else "\n".join(report.lines(outcome))
            )
            click.echo(said)
    if outcome.pairs < LEAST:
        raise SystemExit(1)


def _course(target: Target, hours: float, window: float, carry_over: float | None, seed: int) -> Course:
    pairs = int(hours * 3600 / (2 * window))
    if pairs < LEAST:
        raise CompareError(
            "TooShort",
            f"--hours {hours:g} holds {pairs} pairs of windows of {window:g} s, at least {LEAST} are needed; raise --hours or lower --window",
        )
    if carry_over is None:
        carry_over = _typical(target)
    if 2 * carry_over > window:
        raise CompareError(
            "WindowTooShort",
            f"requests last up to {carry_over:g} s ({_UNKNOWN_SECONDS:g} s is assumed before any has ended), so of --window {window:g} less than half "
            f"could be measured; name {2 * carry_over:g} at least, or another --carry-over",
        )
    return Course(windows(pairs, seed), window, carry_over)


def _typical(target: Target) -> float:
    try:
        seconds = typical_seconds(target.router_pages())
    except FiguresError as error:
        raise CompareError("NoFigures", str(error)) from None
    return max(_LEAST_SECONDS, _UNKNOWN_SECONDS if seconds is None else seconds)


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


@contextmanager
def _stoppable(stop: threading.Event) -> Iterator[None]:
    """Note signals that would end the program: it ends by itself, once the policy of before is set again."""
    known = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in known}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
