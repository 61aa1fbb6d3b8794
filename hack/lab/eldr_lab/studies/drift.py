"""Measure how often unchanged traffic is called drift, and how soon changed traffic is: docs/benchmarks/drift.md and its picture.

Traffic is that of captured activations of the small trained model, placed by sets fitted on other records of the same kinds of
text, in sessions and bursts, by day and night; what judges it is the operator's own code. Constants were chosen on other seeds.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from eldr.sim import traces
from eldr_bench.machine import ROOT
from eldr_bench.proof import require
from eldr_lab.report import filled, table
from eldr_lab.synthetic.activations import QWEN3_30B, WORKLOADS, Synthetic
from eldr_operator.drift.evidence import Z
from eldr_operator.drift.spec import DriftSpec
from tests.support.drifting import (
    BURSTS,
    DAY,
    SESSIONS,
    SINGLE,
    Mix,
    World,
    baseline,
    blend,
    even,
    kinds,
    stream,
    watch,
    world,
    world_of,
)
from tests.support.random_pool import POOLS, Pool

PAGE = ROOT / "docs" / "benchmarks" / "drift.md"
FIGURES = PAGE.with_suffix(".json")
PICTURE = ROOT / "docs" / "images" / "drift.png"
SEEDS = 10_000
"""First of the seeds that judge; constants were chosen on seeds below."""
SPEC = DriftSpec()
RATES = {"0.2": 60, "2": 30, "20": 16}
"""Requests per second, and simulated days of each kind of crowd."""
CROWDS = {"single requests": SINGLE, "sessions": SESSIONS, "sessions and bursts": BURSTS}
SIZES = (150, 300, 700)
"""Records of a baseline, in turn."""
WORLDS = ((4, 4), (6, 8))
"""Kinds that a set is fitted on, and its centroids, in turn."""
MANY = (64, 128, 256)
"""Centroids of sets for large pools, each fitted on ``MANY_KINDS`` synthetic kinds."""
MANY_KINDS = 6
MANY_RATE = "2"
MANY_DAYS = 18
FITS = 3
CHANGES = ("full", "half", "new kind", "slow")
HALF_DAYS = 8
"""Of each pool in which nothing is saved."""
STREAMS = 12
"""Of each change, rate and crowd."""
WARM = 14
"""Windows before a change."""


@lru_cache(maxsize=8)
def large_world(known: int, k: int, seed: int = 1) -> World:
    """Fit a set of many centroids on 1000 synthetic requests of the first kinds: of captured ones there are too few."""
    names = tuple(f"kind {kind}" for kind in range(known + 2))
    shares = (1,) * known + (0,) * 2
    strengths = replace(WORKLOADS["task"], labels=names, shares=shares)
    traffic = Synthetic(strengths, QWEN3_30B, n_layers=4, requests=4000).traffic(seed)
    members = tuple(np.flatnonzero(traffic.requests.label == kind) for kind in range(len(names)))
    return world_of(traffic.calibration, k, seed, names, members, traffic.requests.prefill.astype(np.uint32))


def setting(index: int, many: int = 0) -> tuple[World, Mix, Mix, int]:
    """Return a set, the traffic it was fitted for, other traffic (least known kinds first), and the size of its baseline.

    Parameters
    ----------
    many : int
        Centroids, those of a large pool; 0 for a small one.
    """
    if many:
        large = large_world(MANY_KINDS, many, index % FITS + 1)
        old, new = large.kinds[:MANY_KINDS], large.kinds[MANY_KINDS:]
        return large, even(*old), even(*new), SIZES[index // FITS % len(SIZES)]
    number, k = WORLDS[index % len(WORLDS)]
    fitted = index // len(WORLDS) % FITS
    order = np.random.default_rng([SEEDS, fitted]).permutation(len(kinds()))
    names = [kinds()[kind] for kind in order]
    found = world(tuple(names[:number]), k, fitted + 1)
    known = {kind: found.bins[found.members[found.kinds.index(kind)]].mean() for kind in names[number:]}
    rest = sorted(known, key=lambda kind: float(known[kind]))
    return found, even(*names[:number]), even(*rest), SIZES[index // (len(WORLDS) * FITS) % len(SIZES)]


def stationary(rate: str, crowd: str, index: int, many: int = 0) -> dict[str, Any]:
    """Watch a day of traffic whose mix stays."""
    found, mix, _, size = setting(index, many)
    seed = [SEEDS + index, list(RATES).index(rate), list(CROWDS).index(crowd)]
    rng = np.random.default_rng([*seed, many] if many else seed)
    requests = stream(found, lambda _: mix, rate=float(rate), seconds=DAY, crowd=CROWDS[crowd], rng=rng)
    expected = baseline(found, mix, size=size, crowd=CROWDS[crowd], rng=rng)
    course = watch(found, requests, expected, SPEC, seconds=DAY, rng=rng, every=_every(rate))
    require(course.scores, f"{rate}/s, {crowd}, {index}: no window was judged in a day")
    return {"alarms": len(course.detected), "windows": len(course.scores), "highest": max(course.scores)}


def changed(rate: str, crowd: str, change: str, index: int, many: int = 0) -> dict[str, Any]:
    """Watch traffic whose mix changes; returns how long it went unnoticed, in requests and minutes, None if it did."""
    found, mix, other, size = setting(index, many)
    seed = [SEEDS + index, 100 + CHANGES.index(change), list(RATES).index(rate), list(CROWDS).index(crowd)]
    rng = np.random.default_rng([*seed, many] if many else seed)
    begins = WARM * max(SPEC.window_requests / float(rate), SPEC.window_seconds)
    ends = begins + max(24 * SPEC.window_requests / float(rate), 5400.0)
    requests = stream(
        found,
        partial(_mix, change, mix, other, begins),
        rate=float(rate),
        seconds=ends,
        crowd=CROWDS[crowd],
        rng=rng,
        start=DAY / 4,
    )
    expected = baseline(found, mix, size=size, crowd=CROWDS[crowd], rng=rng)
    course = watch(found, requests, expected, SPEC, seconds=ends, rng=rng, every=_every(rate), after=begins)
    before = sum(time <= begins for time in course.times)
    require(
        before >= SPEC.consecutive_windows,
        f"{change}, {rate}/s, {crowd}, {index}: {before} windows before it",
    )
    require(
        (requests.times > begins).any(), f"{change}, {rate}/s, {crowd}, {index}: no request came after it"
    )
    at = next((time for time in course.detected if time > begins), None)
    if at is None:
        return {"requests": None, "minutes": None}
    between = int(((requests.times > begins) & (requests.times <= at)).sum())
    return {"requests": between, "minutes": round((at - begins) / 60, 1)}


def unsaved(pool: Pool, index: int) -> dict[str, Any]:
    """Look for half a day at what placement saves in a pool whose batches are random, in standard errors."""
    rng = np.random.default_rng([SEEDS + index, POOLS.index(pool)])
    looks = [one for one in pool.looks(traces.load(), DAY / 2, rng) if one is not None]
    require(looks, f"{pool.told()}, {index}: no look told what is saved")
    z = np.array([one.share / one.error for one in looks])
    lost = np.convolve(z < -Z, np.ones(SPEC.consecutive_windows), "valid") >= SPEC.consecutive_windows
    return {
        "looks": len(looks),
        "error": round(float(np.mean([one.error for one in looks])), 5),
        "mean": round(float(z.mean()), 3),
        "spread": round(float(np.sqrt((z**2).mean())), 3),
        "lowest": round(float(z.min()), 2),
        "lost": int(lost.sum()),
    }


def _mix(change: str, mix: Mix, other: Mix, begins: float, time: float) -> Mix:
    if time < begins:
        return mix
    if change == "new kind":
        return blend(mix, even(next(iter(other))), 1 / 3)
    part = {"full": 1.0, "half": 0.5, "slow": min(1.0, (time - begins) / 3600)}[change]
    return blend(mix, other, part)


def _every(rate: str) -> float:
    return 60.0 if float(rate) < 1 else 20.0


def draw(path: Path, known: dict[str, Any]) -> None:
    """Draw the score on both sides of each change, and the delays."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    found, mix, other, size = setting(3)
    crowd, rate, begins, ends = BURSTS, 2.0, 10_800.0, 21_600.0
    for change in ("none", *CHANGES):
        rng = np.random.default_rng([SEEDS, 999])
        course_of = (lambda _: mix) if change == "none" else partial(_mix, change, mix, other, begins)
        requests = stream(found, course_of, rate=rate, seconds=ends, crowd=crowd, rng=rng, start=DAY / 4)
        expected = baseline(found, mix, size=size, crowd=crowd, rng=rng)
        course = watch(found, requests, expected, SPEC, seconds=ends, rng=rng)
        minutes = (np.array(course.times) - begins) / 60
        (line,) = left.plot(minutes, course.scores, label="no change" if change == "none" else change)
        for at in course.detected:
            left.plot(
                [(at - begins) / 60], [course.scores[course.times.index(at)]], "o", color=line.get_color()
            )
    left.axhline(1, color="black", linewidth=0.8, linestyle="--")
    left.axvline(0, color="black", linewidth=0.8)
    left.set(xlabel="minutes after the change", ylabel="drift score (threshold 1)", ylim=(0, None))
    left.set_title("2 requests/s in sessions and bursts; dots: detected")
    left.legend(loc="upper left")
    delays = {
        f"{change}, {rate}/s": [
            run["requests"]
            for crowd in CROWDS
            for run in known[f"{change} {rate} {crowd}"]
            if run["requests"] is not None
        ]
        for change in CHANGES
        for rate in RATES
    }
    right.boxplot(list(delays.values()), orientation="horizontal", whis=(5, 95), showfliers=False)
    right.set_yticks(range(1, len(delays) + 1), list(delays))
    right.invert_yaxis()
    right.set(xlabel="requests until it is detected", xscale="log", title="delay: quartiles, 5 and 95 %")
    ticks = [1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000]
    right.minorticks_off()
    right.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    right.set_xlim(800, 1.5 * max(map(max, delays.values())))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def per_month(alarms: int, days: int) -> str:
    """Return alarms in 30 days with a Poisson interval of 95 %."""
    low = stats.chi2.ppf(0.025, 2 * alarms) / 2 if alarms else 0.0
    high = stats.chi2.ppf(0.975 if alarms else 0.95, 2 * alarms + 2) / 2
    return f"{30 * alarms / days:.2g} ({30 * low / days:.2g} .. {30 * high / days:.2g})"


def quantiles(runs: list[dict[str, Any]], field: str) -> str:
    """Return median and ninth decile; what was not found counts as never."""
    values = [float("inf") if run[field] is None else run[field] for run in runs]
    return " / ".join(
        f"{found:,.0f}" if np.isfinite(found) else "never"
        for found in np.quantile(values, (0.5, 0.9), method="higher")
    )


def page(known: dict[str, Any]) -> str:
    """Return the page."""
    head = (
        "they come as",
        "days",
        "windows",
        "highest score: median / all",
        "alarms",
        "alarms in 30 days (95 %)",
    )
    late = ("they come as", "requests", "minutes", "found")
    numbers = list(map(str, MANY))
    return filled(
        Path(__file__).with_name("templates") / "drift.txt", date=datetime.now(UTC).date(), fits=FITS, spec=SPEC, seeds=SEEDS, z=Z,
        alarms=table(("requests/s", *head), _alarms(known, "stationary {}", RATES)),
        many=", ".join(numbers), many_kinds=MANY_KINDS, many_rate=MANY_RATE,
        many_alarms=table(("centroids", *head), _alarms(known, "many {} stationary", numbers)),
        many_delays=table(("change", "centroids", *late), _delay_rows(known, "many {1} {0}", numbers)),
        unsaved=table(
            ("engines x batch, answers, log of a router", "days", "looks", "standard error",
             "in standard errors: mean / root mean square / lowest", "judged to regress"),
            [_unsaved_row(known[f"unsaved {pool.told()}"], pool) for pool in POOLS],
        ),
        delays=table(("change", "requests/s", *late), _delay_rows(known, "{0} {1}", RATES)),
    )  # fmt: skip


def _delay_rows(known: dict[str, Any], name: str, values: Iterable[str]) -> Iterator[tuple[str, ...]]:
    for change, value, crowd in itertools.product(CHANGES, values, CROWDS):
        runs = known[f"{name.format(change, value)} {crowd}"]
        found = sum(run["requests"] is not None for run in runs)
        times = (quantiles(runs, field) for field in ("requests", "minutes"))
        yield change, value, crowd, *times, f"{found} of {len(runs)}"


def _alarms(known: dict[str, Any], name: str, values: Iterable[str]) -> Iterator[tuple[str, ...]]:
    for value in values:
        own = {crowd: known[f"{name.format(value)} {crowd}"] for crowd in CROWDS}
        for crowd, runs in (*own.items(), ("**all**", [run for some in own.values() for run in some])):
            alarms, windows = (sum(run[what] for run in runs) for what in ("alarms", "windows"))
            highest = [run["highest"] for run in runs]
            yield (
                value, crowd, str(len(runs)), f"{windows:,}", f"{np.median(highest):.2f} / {max(highest):.2f}", str(alarms),
                per_month(alarms, len(runs)),
            )  # fmt: skip


def _unsaved_row(runs: list[dict[str, Any]], pool: Pool) -> tuple[str, ...]:
    mean, error = (float(np.mean([run[field] for run in runs])) for field in ("mean", "error"))
    spread = float(np.sqrt(np.mean([run["spread"] ** 2 for run in runs])))
    looks, lost = (sum(run[what] for run in runs) for what in ("looks", "lost"))
    lowest = min(run["lowest"] for run in runs)
    return (
        pool.told(),
        f"{len(runs) / 2:g}",
        f"{looks:,}",
        f"{error:.2%}",
        f"{mean:+.2f} / {spread:.2f} / {lowest:.1f}",
        str(lost),
    )


@click.command(context_settings={"show_default": True})
@click.option("--jobs", default=1, help="Processes.")
@click.option("--again", is_flag=True, help="Only write the page, from the last runs.")
def main(jobs: int, *, again: bool) -> None:
    """Simulate, and write the page."""
    cells: dict[str, tuple[Any, int]] = {}
    for crowd in CROWDS:
        for rate, days in RATES.items():
            cells[f"stationary {rate} {crowd}"] = partial(stationary, rate, crowd), days
            for change in CHANGES:
                cells[f"{change} {rate} {crowd}"] = partial(changed, rate, crowd, change), STREAMS
        for many in MANY:
            cells[f"many {many} stationary {crowd}"] = (
                partial(stationary, MANY_RATE, crowd, many=many),
                MANY_DAYS,
            )
            for change in CHANGES:
                cells[f"many {many} {change} {crowd}"] = (
                    partial(changed, MANY_RATE, crowd, change, many=many),
                    STREAMS,
                )
    for pool in POOLS:
        cells[f"unsaved {pool.told()}"] = partial(unsaved, pool), HALF_DAYS
    known: dict[str, Any] = json.loads(FIGURES.read_text()) if again else {}
    with ProcessPoolExecutor(jobs) as processes:
        for name, (run, number) in () if again else cells.items():
            print(name, file=sys.stderr, flush=True)
            known[name] = list(processes.map(run, range(number), chunksize=3))
    FIGURES.write_text(json.dumps(known, separators=(",", ":")) + "\n")
    draw(PICTURE, known)
    PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
