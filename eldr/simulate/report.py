"""Results of a study, for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from eldr.simulate.advice import to_set
from eldr.simulate.measures import Measures
from eldr.simulate.outcome import MOST_WAITED, Outcome
from eldr.simulate.pairs import change
from eldr.simulate.setting import Setting
from eldr.simulate.study import Study

VERSION = 2
_OF_RANKS = ("fullest_per_token",)  # engines have one here
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
    about : dict
        What the requests are, ``notes`` for the reader.

    Notes
    -----
    Times are in seconds. ``change`` holds relative differences to the first policy, ``[mean, half width]`` of a 95 % interval
    over the seeds; the half width is null with one seed. ``best`` is the policy with the least mean TPOT, ``level`` are those
    whose difference to it may be chance.
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
    best, level = _best(study, runs)
    return {
        "engines": setting.engines,
        "rate": float(np.mean([one.rate for one in outcomes])),
        "batch": setting.batch,
        "speeds": list(setting.speeds),
        "drafts": setting.drafts.tokens,
        "accepted": setting.drafts.accepted,
        "best": best,
        "level": level,
        "policies": [
            {
                "policy": contender.text,
                "set": to_set(contender),
                **_means(some),
                "change": _changes(some, runs[0]),
            }
            for contender, some in zip(study.contenders, runs, strict=True)
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _best(study: Study, runs: list[list[Measures]]) -> tuple[str, list[str]]:
    """Return the policy with the least mean TPOT, and those that are not shown to be worse."""
    means = [[run.tpot_mean for run in some] for some in runs]
    best = min(range(len(means)), key=lambda which: float(np.mean(means[which])))
    level = []
    for which, contender in enumerate(study.contenders):
        worse = change(means[which], means[best])
        if which != best and worse.mean - worse.half_width <= 0:
            level.append(contender.text)
    return study.contenders[best].text, level


def _means(runs: list[Measures]) -> dict[str, float]:
    rows = [asdict(run) for run in runs]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name not in _OF_RANKS}


def _changes(runs: list[Measures], baseline: list[Measures]) -> dict[str, list[float | None]]:
    changes: dict[str, list[float | None]] = {}
    for name in COMPARED:
        interval = change([getattr(run, name) for run in runs], [getattr(run, name) for run in baseline])
        changes[name] = [interval.mean, _finite(interval.half_width)]
    return changes


def check_numbers(outcomes: Sequence[Outcome]) -> None:
    """Refuse figures that are no numbers to compare: times too far apart for one clock.

    Raises
    ------
    ValueError
    """
    for one in outcomes:
        for name, value in asdict(one.measures).items():
            if not math.isfinite(value) or (name in COMPARED and value <= 0):
                raise ValueError(
                    f"{name} came out as {value:g}: the times of --step-time, or the rate, are too far apart to be simulated "
                    "together; correct the one that is wrong"
                )


def notes(distinct: int, outcomes: Sequence[Outcome], study: Study) -> list[str]:
    """Return the caveats of the figures."""
    caveats = []
    held = max(
        study.settings[one.setting].engines * one.measures.batch for one in outcomes if one.contender == 0
    )
    if held > distinct:
        caveats.append(
            f"engines hold {held:.0f} requests together, and there are {distinct} different ones: the same ones meet, "
            "which saves experts that other traffic would not save"
        )
    worst = max(outcomes, key=lambda one: one.measures.waited)
    if worst.measures.waited > MOST_WAITED:
        setting, policy = study.settings[worst.setting], study.contenders[worst.contender]
        caveats.append(
            f"with {policy.text} {worst.measures.waited:.0%} of the requests came to an engine without room "
            f"({setting.engines} engines, {worst.rate:.3g} requests/s): its figures hold waiting, and more so the longer it runs"
        )
    if len(study.seeds) == 1:
        caveats.append("one seed gives no intervals")
    return caveats
