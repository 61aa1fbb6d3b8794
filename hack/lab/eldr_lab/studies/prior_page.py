"""The page about the learned prior, from its figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from eldr_lab.evidence.cells import place
from eldr_lab.report import Interval, interval, section, table
from eldr_lab.studies.prior_cases import SOON, Case, Figures

Found = tuple[Case, Figures]
AT_REST, AFTER_DRIFT = 0.6, 0.3
"""Points by which the mean may at most be above that of the fitted prior, by the upper end of the interval."""
HOLDS, UNDECIDED, MISSED = "holds", "undecided", "**no**"
WELL = 0.25
"""Seconds between exchanges of routers that hear each other well."""
_TITLES = {
    "rest": ("At rest", "The mix that centroids were fitted on."),
    "drift": (
        "After a drift",
        "The mix of kinds changes at 45 s, and the centroids stay. Measured is what comes after.",
    ),
    "popular": (
        "A popular kind",
        "One kind is most of the traffic (task 70 %, language 40 %), and was when the centroids were fitted.",
    ),
    "uneven": ("Slow and fast engines", "Every second engine takes 1.58 times as long."),
    "size": ("Size of the pool", "3.75 requests/s per engine."),
    "routers": (
        "Several routers",
        "Requests go to routers in turn, which tell each other what they placed and learned.",
    ),
    "apart": (
        "Routers that hear little of each other",
        "The same, every two seconds. *never*: they have lost each other. Fitted centroids tell all of them the same.",
    ),
    "joins": (
        "A new engine",
        "One of 16 engines comes when measuring begins. Its centroid was fitted beforehand.",
    ),
    "restart": ("A restart", "All routers lose what they learned, and their tolls, when measuring begins."),
}


def page(found: Sequence[Found]) -> str:
    """Return the page."""
    seeds = sorted({int(seed) for _, figures in found for seed in figures})
    opening = (
        f"Part of the [evidence](../evidence.md). `make -C hack/lab bench-prior` writes this page. Simulated as in [the default policy](../evidence/default.md): 60 s, "
        f"answers of 512 tokens, {len(found)} cells, seeds {seeds[0]} to {seeds[-1]}{_fewer(found, len(seeds))}. No constant was chosen under these seeds. ± is half "
        "of a 95 % interval over the seeds (Student's t). Against published numbers this simulator is [off by some points](../evidence.md#the-models-error) for the "
        "paper's policy; of what is compared here no error is known. All policies of a seed meet the same requests."
    )
    meaning = (
        "Without an active centroid set, routers with `MarginalUnion` learn the prior while they place "
        "([how](../how-it-works.md#the-formulas)). *learned* has the weight (0.23) and the tolls of the fitted prior. *fitted*: one "
        "centroid set for the whole run. *none*: weight 0, which is what such a pool had before."
    )
    parts = ["# A prior that waits for no fit", opening, meaning, section("The result", *_result(found))]
    for kind, (title, words) in _TITLES.items():
        rows = [one for one in found if _kind(one[0]) == kind]
        if rows:
            parts.append(section(title, words, _table(rows)))
    parts.append(
        section(
            "Opposite faults",
            "Requests of the engine that got the most and of the one that got the least, in % of the mean over all engines. Means over seeds. A prior that crowds or starves "
            "engines would show here.",
            _loads(found),
        )
    )
    return "\n\n".join(parts) + "\n"


def _fewer(found: Sequence[Found], most: int) -> str:
    """Return how many cells have fewer seeds."""
    fewer = [len(figures) for _, figures in found if len(figures) < most]
    return f" ({len(fewer)} cells have fewer, at least {min(fewer)})" if fewer else ""


def _result(found: Sequence[Found]) -> Iterator[str]:
    yield (
        f"The bound on *learned less fitted*, in the mean: {AT_REST:g} points of JSQ's mean, {AFTER_DRIFT:g} after a drift. It *holds* where the "
        "whole interval is below it, does not where the whole interval is above it, and is *undecided* elsewhere."
    )
    rows = []
    for kind, (title, _) in _TITLES.items():
        some = [one for one in found if _kind(one[0]) == kind]
        if not some:
            continue
        less = [_mean(some, other, what) for other in ("fitted", "none") for what in ("mean", "p99")]
        verdicts = [_verdict(one) for one in some]
        rows.append(
            (
                title,
                *map(str, less),
                " / ".join(str(verdicts.count(one)) for one in (HOLDS, UNDECIDED, MISSED)),
            )
        )
    head = (
        "cells",
        "less fitted: mean",
        "P99",
        "less none: mean",
        "P99",
        "bound holds / undecided / does not",
    )
    yield "Points, mean over the cells of a kind:"
    yield table(head, rows)
    yield _named("The bound does not hold in", [one[0] for one in found if _verdict(one) == MISSED])
    for what, name in (("mean", "mean"), ("p99", "P99")):
        changes = [(case, _less(figures, "none", what)) for case, figures in found if len(figures) > 1]
        shorter = sum(change.high < 0 for _, change in changes)
        yield _named(
            f"Against no prior, by the whole interval, the {name} is shorter in {shorter} of {len(changes)} cells. It is longer in",
            [case for case, change in changes if change.low > 0],
        )


def _named(words: str, cases: Sequence[Case]) -> str:
    places = [f"- {_where(case)} ({_TITLES[_kind(case)][0].lower()})" for case in cases]
    return "\n".join((f"{words} {len(cases)}:", "", *places)) if cases else f"{words} none."


def _table(found: Sequence[Found]) -> str:
    head = (
        "where", "mean, none", "fitted", "learned", "learned less fitted: mean", "P50", "P99", "bound", "learned less none: mean", "P99",
    )  # fmt: skip
    return table(head, (_row(one) for one in found))


def _row(one: Found) -> Sequence[str]:
    case, figures = one
    changes = [
        interval([seed[name]["mean"] for seed in figures.values()]) for name in ("none", "fitted", "learned")
    ]
    fitted = [_less(figures, "fitted", what).text("+.2f", ".2f") for what in ("mean", "p50", "p99")]
    none = [_less(figures, "none", what).text("+.2f", ".2f") for what in ("mean", "p99")]
    return _where(case), *map(str, changes), *fitted, _verdict(one), *none


def _verdict(one: Found) -> str:
    case, figures = one
    if len(figures) < 2:
        return UNDECIDED
    bound, less = AFTER_DRIFT if case.group == "drift" else AT_REST, _less(figures, "fitted", "mean")
    return HOLDS if less.high < bound else MISSED if less.low > bound else UNDECIDED


def _kind(case: Case) -> str:
    """Return the group of a cell; routers that hear little of each other are one of their own."""
    return "apart" if case.lag > WELL else case.group


def _less(figures: Figures, other: str, what: str) -> Interval:
    return interval([seed["learned"][what] - seed[other][what] for seed in figures.values()])


def _mean(found: Sequence[Found], other: str, what: str) -> Interval:
    """Return the mean over cells, with an interval over the seeds that all of them have."""
    common = set.intersection(*(set(figures) for _, figures in found))
    return interval(
        [
            sum(figures[seed]["learned"][what] - figures[seed][other][what] for _, figures in found)
            / len(found)
            for seed in sorted(common)
        ]
    )


def _loads(found: Iterable[Found]) -> str:
    rows = []
    groups: dict[str, list[Found]] = {}
    for one in found:
        groups.setdefault(_kind(one[0]), []).append(one)
    for group, some in groups.items():
        shares = [
            f"{_average(some, name, 'most'):.0f} / {_average(some, name, 'least'):.0f}"
            for name in ("none", "fitted", "learned")
        ]
        new = "-"
        if group == "joins":
            new = " / ".join(f"{_average(some, name, 'new'):.0f}" for name in ("none", "fitted", "learned"))
        rows.append((_TITLES[group][0], *shares, new))
    head = (
        "cells",
        "none: most / least",
        "fitted",
        "learned",
        f"new engine, first {SOON:g} s: none / fitted / learned",
    )
    return table(head, rows)


def _average(found: Sequence[Found], name: str, what: str) -> float:
    values = [seed[name][what] for _, figures in found for seed in figures.values()]
    return sum(values) / len(values)


def _where(case: Case) -> str:
    parts = [place(case.geometry, case.workload), f"{case.rate:g}/s"]
    if case.engines != 16:
        parts.append(f"{case.engines} engines")
    if case.routers > 1:
        lag = "never" if math.isinf(case.lag) else f"every {case.lag:g} s"
        parts += [f"{case.routers} routers", lag]
    return ", ".join(parts)
