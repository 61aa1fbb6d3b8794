"""What a study found: JSON for machines, words and tables for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from eldr.simulate.measures import Measures
from eldr.simulate.pairs import change
from eldr.simulate.setting import Setting
from eldr.simulate.study import Outcome, Study

VERSION = 1
COMPARED = (
    "tpot_mean",
    "tpot_p50",
    "tpot_p95",
    "tpot_p99",
    "ttft_p50",
    "active_per_token",
    "active_per_step",
)


def as_json(study: Study, outcomes: Sequence[Outcome], about: dict[str, Any]) -> dict[str, Any]:
    """Return the report object.

    Parameters
    ----------
    study : Study
        Its first contender is what the others are compared with.
    outcomes : sequence of Outcome
    about : dict
        What the requests are, ``notes`` for the reader.

    Notes
    -----
    Times are in seconds. ``change`` holds relative differences to the first policy, ``[mean, half width]`` of a 95 % interval
    over the seeds; the half width is null with one seed.
    """
    return {
        "version": VERSION,
        **about,
        "seeds": list(study.seeds),
        "settings": [
            _setting(study, setting, [one for one in outcomes if one.setting == at])
            for at, setting in enumerate(study.settings)
        ],
    }


def _setting(study: Study, setting: Setting, outcomes: list[Outcome]) -> dict[str, Any]:
    runs = [
        [one.measures for one in outcomes if one.contender == which] for which in range(len(study.contenders))
    ]
    return {
        "engines": setting.engines,
        "rate": float(np.mean([one.rate for one in outcomes])),
        "batch": setting.batch,
        "speeds": list(setting.speeds),
        "unions": "sampled" if setting.sampled else "expected",
        "output_tokens": setting.output_tokens,
        "drift_at": setting.drift_at if setting.drift_at < math.inf else None,
        "routers": setting.routers,
        "policies": [
            {"policy": contender.text, **_means(some), "change": _changes(some, runs[0])}
            for contender, some in zip(study.contenders, runs, strict=True)
        ],
    }


def _means(runs: list[Measures]) -> dict[str, float]:
    rows = [asdict(run) for run in runs]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _changes(runs: list[Measures], baseline: list[Measures]) -> dict[str, list[float | None]]:
    changes: dict[str, list[float | None]] = {}
    for name in COMPARED:
        found = change([getattr(run, name) for run in runs], [getattr(run, name) for run in baseline])
        changes[name] = [found.mean, None if math.isnan(found.half_width) else found.half_width]
    return changes


def notes(distinct: int, outcomes: Sequence[Outcome], study: Study) -> list[str]:
    """Return what a reader should know before believing the figures."""
    found = []
    held = max(
        study.settings[one.setting].engines * one.measures.batch for one in outcomes if one.contender == 0
    )
    if held > distinct:
        found.append(
            f"engines hold {held:.0f} requests together, and there are {distinct} different ones: the same ones meet, "
            "which saves experts that other traffic would not save"
        )
    worst = max(outcomes, key=lambda one: one.measures.waited)
    if worst.measures.waited > 0.01:
        setting, policy = study.settings[worst.setting], study.contenders[worst.contender]
        found.append(
            f"with {policy.text} {worst.measures.waited:.0%} of the requests came to an engine without room "
            f"({setting.engines} engines, {worst.rate:.3g} requests/s): its figures hold waiting, and more so the longer it runs"
        )
    if len(study.seeds) == 1:
        found.append("one seed gives no intervals")
    return found


def words(setting: dict[str, Any]) -> str:
    """Return what one setting's figures say, in a sentence or two."""
    baseline, *others = setting["policies"]
    name = baseline["policy"]
    sure = [policy for policy in others if _sure(policy["change"]["tpot_mean"])]
    if not sure:
        return f"No policy shortens the mean time per token against {name} by more than chance would."
    best = min(sure, key=lambda policy: policy["tpot_mean"])
    text = (
        f"{best['policy']} brings most: time per token {_percent(best['change']['tpot_mean'])} in the mean, "
        f"{_percent(best['change']['tpot_p50'])} at P50, {_percent(best['change']['tpot_p99'])} at P99 against {name}."
    )
    calm = min(others, key=lambda policy: policy["tpot_p99"])
    if calm is not best and calm["tpot_p99"] < best["tpot_p99"] * 0.99:
        text += (
            f" The shortest tail has {calm['policy']}: {_percent(calm['change']['tpot_p99'])} at P99, "
            f"{_percent(calm['change']['tpot_mean'])} in the mean."
        )
    return text


def _sure(found: list[float | None]) -> bool:
    mean, half_width = found
    return mean is not None and mean + (half_width or 0.0) < 0


def _percent(found: list[float | None], unit: str = " %") -> str:
    mean, half_width = found
    text = f"{100 * (mean or 0.0):+.1f}"
    return text + unit if half_width is None else f"{text} ±{100 * half_width:.1f}{unit}"


def print_text(report: dict[str, Any], console: Console) -> None:
    """Write what was found as tables with a sentence below each."""
    law = report["law"]
    console.print(report["requests"], highlight=False)
    console.print(
        f"A decode step takes {1e3 * law['fixed']:.2f} ms, {1e6 * law['per_expert']:.0f} us for each active expert "
        f"and {1e6 * law['per_request']:.0f} us for each request of the batch.",
        highlight=False,
    )
    for setting in report["settings"]:
        console.print(_table(setting), highlight=False)
        console.print(words(setting), highlight=False)
    for note in report["notes"]:
        console.print(f"Note: {note}", highlight=False)


def _table(setting: dict[str, Any]) -> Table:
    baseline, *others = setting["policies"]
    name = baseline["policy"]
    title = f"{setting['engines']} engines, {setting['rate']:.3g} requests/s, batch {baseline['batch']:.1f} with {name}"
    if setting["drift_at"] is not None:
        title += f", after the mix has changed at {setting['drift_at']:.0f} s"
    caption = f"TPOT: time per output token; experts: active per generated token. Below {name}: % of change."
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left", box=None, pad_edge=False
    )
    table.add_column("policy", no_wrap=True)
    for column in ("TPOT mean", "P50", "P95", "P99", "experts", "TTFT P50", "largest load"):
        table.add_column(column, justify="right", no_wrap=True)
    times = [_time(baseline[name]) for name in ("tpot_mean", "tpot_p50", "tpot_p95", "tpot_p99")]
    table.add_row(
        name,
        *times,
        f"{baseline['active_per_token']:.1f}",
        _time(baseline["ttft_p50"]),
        f"{baseline['imbalance']:.2f}",
    )
    names = ("tpot_mean", "tpot_p50", "tpot_p95", "tpot_p99", "active_per_token", "ttft_p50")
    for policy in others:
        cells = [_percent(policy["change"][name], "") for name in names]
        table.add_row(policy["policy"], *cells, f"{policy['imbalance']:.2f}")
    return table


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
