"""Measure how often unchanged traffic is called drift, and how soon changed traffic is: docs/benchmarks/drift.md and its picture.

Traffic is that of captured activations of the small trained model, placed by sets fitted on other records of the same kinds of
text, in sessions and bursts, by day and night; what judges it is the operator's own code. Constants were chosen on other seeds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
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
NAMES = {
    "full": "all traffic becomes kinds that the set does not know",
    "half": "half of it does",
    "new kind": "a third of it becomes one such kind, that which the centroids know least",
    "slow": "all of it does, evenly over an hour",
}
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
        f"{change}, {rate}/s": after
        for change in CHANGES
        for rate in RATES
        if (after := _delays(known, change, rate))
    }
    if not delays:
        raise SystemExit("no change was simulated yet: run once without --part")
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


def _delays(known: dict[str, Any], change: str, rate: str) -> list[float]:
    return [
        run["requests"]
        for crowd in CROWDS
        for run in known.get(f"{change} {rate} {crowd}", [])
        if run["requests"] is not None
    ]


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
    lines = [
        "# False alarms and delays of drift detection",
        "",
        f"Written by `make -C hack/lab bench-drift` on {datetime.now(UTC).date()}. Captured activations of [the small trained model](../../hack/tiny_moe/README.md), 8 kinds of text;",
        f"{FITS} sets of 4 centroids on 4 kinds and {FITS} of 8 on 6, each on half of the records of its kinds. Traffic draws the other half. A session is 5 requests on",
        "average (geometric) of one kind and three subjects, half a minute apart. One session in a hundred is a burst of 30 within seconds. The rate",
        "goes up and down by 80 % over the day; two routers. Baselines hold 150, 300 or 700 records of a log of 10 %, in turn. Settings: the defaults,",
        f"windows of {SPEC.window_requests} requests and {SPEC.window_seconds} s at least, {SPEC.consecutive_windows} of them. Constants were chosen on seeds below {SEEDS:,}; these runs have seeds from there on.",
        "How it is decided: [drift](../drift.md).",
        "",
        "## False alarms",
        "",
        "The mix stays, for a day at a time. Stated is at most one alarm in 30 days, at any rate of requests.",
        "",
        "| requests/s | they come as | days | windows | highest score: median / all | alarms | alarms in 30 days (95 %) |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for rate in RATES:
        everything = [run for crowd in CROWDS for run in known.get(f"stationary {rate} {crowd}", [])]
        for crowd in CROWDS:
            lines += _stationary_row(known.get(f"stationary {rate} {crowd}", []), rate, crowd)
        lines += _stationary_row(everything, rate, "**all**")
    lines += [
        "",
        "## Many engines",
        "",
        f"Sets of {', '.join(map(str, MANY))} centroids, fitted on 1000 synthetic requests of {MANY_KINDS} kinds (captured ones are too few), at {MANY_RATE} requests/s: false alarms as",
        "above, and delays as below.",
        "",
        "| centroids | they come as | days | windows | highest score: median / all | alarms | alarms in 30 days (95 %) |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for many in MANY:
        everything = [run for crowd in CROWDS for run in known.get(f"many {many} stationary {crowd}", [])]
        for crowd in CROWDS:
            lines += _stationary_row(known.get(f"many {many} stationary {crowd}", []), str(many), crowd)
        lines += _stationary_row(everything, str(many), "**all**")
    lines += ["", *_DELAYS_OF.format("centroids").splitlines()]
    for change in CHANGES:
        for many in MANY:
            for crowd in CROWDS:
                lines += _delay_row(known.get(f"many {many} {change} {crowd}", []), change, str(many), crowd)
    lines += [
        "",
        "## What is measured where nothing is saved",
        "",
        "Batches are random, on engines that are always full, and looked at once a minute. A set goes out of service, or is rolled back, if the measured saving is more than",
        f"{Z:.1f} standard errors below zero, or below its share of the prediction, in {SPEC.consecutive_windows} windows in a row. If fewer than 64 logged requests finished within an hour, nothing is judged.",
        "",
        "| engines x batch, answers, log of a router | days | looks | standard error | in standard errors: mean / root mean square / lowest | judged to regress |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for pool in POOLS:
        lines += _unsaved_row(known.get(f"unsaved {pool.told()}", []), pool)
    lines += [
        "",
        "## Delays",
        "",
        "Median / ninth decile from the change (the beginning of a slow one) to the detection. Each run looks for the change for",
        "24 windows or 90 minutes, whichever is longer.",
        "",
        *_DELAYS_OF.format("requests/s").splitlines(),
    ]
    for change in CHANGES:
        for rate in RATES:
            for crowd in CROWDS:
                lines += _delay_row(known.get(f"{change} {rate} {crowd}", []), change, rate, crowd)
    lines += ["", *(f"- {change}: {text}." for change, text in NAMES.items()), ""]
    return "\n".join([*lines, "![Scores and delays](../images/drift.png)", ""])


_DELAYS_OF = """\
| change | {} | they come as | requests | minutes | found |
|---|---:|---|---:|---:|---:|
"""


def _delay_row(runs: list[dict[str, Any]], change: str, of: str, crowd: str) -> Iterable[str]:
    if runs:
        found = sum(run["requests"] is not None for run in runs)
        yield (
            f"| {change} | {of} | {crowd} | {quantiles(runs, 'requests')} | {quantiles(runs, 'minutes')} | "
            f"{found} of {len(runs)} |"
        )


def _stationary_row(runs: list[dict[str, Any]], rate: str, crowd: str) -> Iterable[str]:
    if runs:
        alarms, windows = sum(run["alarms"] for run in runs), sum(run["windows"] for run in runs)
        highest = [run["highest"] for run in runs]
        yield (
            f"| {rate} | {crowd} | {len(runs)} | {windows:,} | {np.median(highest):.2f} / {max(highest):.2f} | {alarms} | "
            f"{per_month(alarms, len(runs))} |"
        )


def _unsaved_row(runs: list[dict[str, Any]], pool: Pool) -> Iterable[str]:
    if runs:
        mean, error = (float(np.mean([run[field] for run in runs])) for field in ("mean", "error"))
        spread = float(np.sqrt(np.mean([run["spread"] ** 2 for run in runs])))
        yield (
            f"| {pool.told()} | {len(runs) / 2:g} | {sum(run['looks'] for run in runs):,} | {error:.2%} | {mean:+.2f} / {spread:.2f} / "
            f"{min(run['lowest'] for run in runs):.1f} | {sum(run['lost'] for run in runs)} |"
        )


@click.command()
@click.option(
    "--part",
    "parts",
    multiple=True,
    help="Only cells whose name begins so, for instance 'stationary 20'; the others stay as they are.",
)
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--more", default=1, show_default=True, help="So many times the days and streams.")
@click.option("--again", is_flag=True, help="Only write the page, from the last runs.")
def main(parts: tuple[str, ...], jobs: int, more: int, again: bool) -> None:
    """Simulate, and write the page."""
    known: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    cells: dict[str, tuple[Any, int]] = {}
    for rate, days in RATES.items():
        for crowd in CROWDS:
            cells[f"stationary {rate} {crowd}"] = partial(stationary, rate, crowd), days
            for change in CHANGES:
                cells[f"{change} {rate} {crowd}"] = partial(changed, rate, crowd, change), STREAMS
    for many in MANY:
        for crowd in CROWDS:
            same = partial(stationary, MANY_RATE, crowd, many=many)
            cells[f"many {many} stationary {crowd}"] = same, MANY_DAYS
            for change in CHANGES:
                other = partial(changed, MANY_RATE, crowd, change, many=many)
                cells[f"many {many} {change} {crowd}"] = other, STREAMS
    for pool in POOLS:
        cells[f"unsaved {pool.told()}"] = partial(unsaved, pool), HALF_DAYS
    wanted = [name for name in cells if not again and (not parts or name.startswith(parts))]
    with ProcessPoolExecutor(jobs) as processes:
        for name in wanted:
            print(name, file=sys.stderr, flush=True)
            run, number = cells[name]
            known[name] = list(processes.map(run, range(more * number), chunksize=3))
            FIGURES.write_text(
                json.dumps({cell: known[cell] for cell in cells if cell in known}, separators=(",", ":"))
                + "\n"
            )
    draw(PICTURE, known)
    PAGE.write_text(page(known))
    print(f"wrote {PAGE.relative_to(ROOT)}, {FIGURES.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
