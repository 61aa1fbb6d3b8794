"""The page about long contexts, from its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eldr_lab.report import changes, interval, section, table

Case = tuple[int, float, float, Mapping[str, Mapping[str, Mapping[str, float]]]]
"""Tokens of a KV cache, share of long prompts, requests per second, and the figures by seed, policy and quantity."""
PLAIN, JSQ = "default, requests only", "JSQ, requests only"
_COLUMNS = (
    ("preemptions / 1000", "preemptions", 1.0, ".1f"),
    ("refused at least once / 1000", "refused", 1.0, ".1f"),
    ("TPOT P50, ms", "tpot_p50", 1e3, ".1f"),
    ("P99", "tpot_p99", 1e3, ".1f"),
    ("first token P99, short, s", "short_p99", 1.0, ".2f"),
    ("long, s", "long_p99", 1.0, ".2f"),
    ("latency P50, s", "latency_p50", 1.0, ".2f"),
    ("P99", "latency_p99", 1.0, ".1f"),
)
_READING = (
    "Where KV caches fill up with long prompts (112k, 670k), requests are hardly preempted if KV counts, and short ones no longer wait behind long ones. Where a pool is nearly full "
    "(670k, 30/s), a tenth of the requests come again, short ones wait seconds, and long ones about as long as before. "
    "With short prompts alone (28k, 28/s: more than the pool can do), counting KV gains nothing: requests are preempted as often or more often, and first tokens come later. "
    "Up to a third of the requests get 429. A term for context shortens the mean, and lengthens P99 where few requests are long."
)
_CHANGES = ("tpot_mean", "tpot_p50", "tpot_p99", "latency_p50", "latency_p99")


def page(found: Sequence[Case]) -> str:
    """Return the page."""
    seeds = sorted({int(seed) for *_, figures in found for seed in figures})
    opening = (
        f"Part of the [evidence](../evidence.md). `make -C hack/lab bench-contexts` writes this page. Simulated: 8 engines, prompts of about 1,000 and 64,000 tokens, "
        f"answers of 250 in the median, {len(found)} cells, 40 s each, seeds {seeds[0]} to {seeds[-1]}. No constant was chosen under these seeds. ± is half of a "
        "95 % interval over the seeds (Student's t). Against published numbers this simulator is [off by some points](../evidence.md#the-models-error) for the paper's "
        "policy; of what is compared here no error is known. Under one seed, all policies get the same requests."
    )
    model = (
        "Steps take what [Qwen3-30B on an MI300X](studies.md#calibration) takes, with what a request costs there charged by its context: 30 ns "
        "a token. A KV cache holds 112,000 tokens (the model on a card of 80 GB), 670,000 (141 GB), or 28,000. As vLLM does, engines let in who fits, first "
        "come first served, preempt who came last, and compute its tokens again (20 us each). A request that a router refuses comes "
        "again after a second. Prompts take no time."
    )
    words = (
        "*requests only*: any engine may have any request. Otherwise engines without room are no candidates. *default*: `MarginalUnion` with a learned prior. "
        "*context known*: its step-time model has a term for context, and `JSQ` counts a token by what it takes of a step."
    )
    return (
        "\n\n".join(
            (
                "# Long contexts",
                opening,
                model,
                words,
                section(
                    "The result",
                    _READING,
                    "Least and most of the cells, means over the seeds:",
                    _result(found),
                ),
                section("Against JSQ by requests only", _changes(found, JSQ)),
                section("Against the default by requests only", _changes(found, PLAIN)),
                section("Every cell", *_cells(found)),
            )
        )
        + "\n"
    )


def _result(found: Sequence[Case]) -> str:
    """Return, for each policy, the range over the cells of what clients notice."""
    rows = []
    for name in _names(found[0][-1]):
        cells = []
        for _, what, unit, form in (*_COLUMNS[:2], *_COLUMNS[4:6]):
            means = [
                unit * interval([seed[name][what] for seed in figures.values()]).mean
                for *_, figures in found
                if all(what in seed[name] for seed in figures.values())
            ]
            cells.append(f"{min(means):{form}} .. {max(means):{form}}")
        for what in ("tpot_p50", "tpot_p99"):
            means = [
                changes(*([seed[which][what] for seed in figures.values()] for which in (name, JSQ))).mean
                for *_, figures in found
            ]
            cells.append(f"{min(means):+.1f} .. {max(means):+.1f}")
        rows.append((name, *cells))
    titles = [title for title, *_ in (*_COLUMNS[:2], *_COLUMNS[4:6])]
    return table(("policy", *titles, "TPOT P50 against JSQ by requests only, %", "P99"), rows)


def _where(case: Case) -> str:
    capacity, share, rate, _ = case
    return f"{capacity // 1000}k tokens of KV, {100 * share:g} % long, {rate:g}/s"


def _names(figures: Mapping[str, Mapping[str, object]]) -> list[str]:
    return list(next(iter(figures.values())))


def _changes(found: Sequence[Case], base: str) -> str:
    """Return changes in percent, by case and policy."""
    rows = []
    for case in found:
        figures = case[-1]
        for name in _names(figures):
            if name in (JSQ, base) or (base == PLAIN and name.startswith("JSQ")):
                continue
            told = [
                changes(*([seed[which][what] for seed in figures.values()] for which in (name, base)))
                for what in _CHANGES
            ]
            rows.append((_where(case), name, *map(str, told)))
    head = ("where", "policy", "TPOT mean, %", "P50", "P99", "latency P50, %", "P99")
    return table(head, rows)


def _cells(found: Sequence[Case]) -> list[str]:
    parts = []
    for case in found:
        figures = case[-1]
        rows = []
        for name in _names(figures):
            cells = []
            for _, what, unit, form in _COLUMNS:
                values = [unit * seed[name][what] for seed in figures.values() if what in seed[name]]
                cells.append(interval(values).text(form, form) if values else "-")
            rows.append((name, *cells))
        parts.append(f"{_where(case)}:")
        parts.append(table(("policy", *(title for title, *_ in _COLUMNS)), rows))
    return parts
