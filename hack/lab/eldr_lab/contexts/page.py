"""The page about long contexts on real engines, from its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr_lab.contexts.traffic import LONG, LONGEST, SHORT, SHORTEST
from eldr_lab.report import changes, interval, section, table
from tests.vllm.engines import BLOCK

PLAIN, DEFAULT = "JSQ, requests only", "default, requests only"
_COLUMNS = (
    ("preemptions / 1000", "preemptions", 1.0, ".1f"),
    ("refused at least once / 1000", "refused", 1.0, ".1f"),
    ("first token P50, short, s", "short_p50", 1.0, ".2f"),
    ("P99", "short_p99", 1.0, ".2f"),
    ("first token P50, long, s", "long_p50", 1.0, ".2f"),
    ("P99", "long_p99", 1.0, ".2f"),
    ("TPOT P50, ms", "tpot_p50", 1e3, ".1f"),
    ("P99", "tpot_p99", 1e3, ".1f"),
    ("latency P50, s", "latency_p50", 1.0, ".2f"),
    ("P99", "latency_p99", 1.0, ".2f"),
)
_CHANGES = ("tpot_mean", "tpot_p50", "tpot_p99", "short_p99", "long_p99", "latency_p50", "latency_p99")


def page(found: Mapping[str, Any]) -> str:
    """Return the page."""
    runs = found["rounds"]
    opening = (
        f"Part of the [evidence](../evidence.md). `make -C hack/lab bench-contexts-engines RATE={found['rate']:g}` on {found['date']}, {found['commit']}, {found['machine']}. "
        f"One prefill and two decode engines (vLLM on the CPU, the small trained model, the plug-in) behind our router, all on two cores. Prompts of about {SHORT} tokens, "
        f"{100 * found['share']:g} % of about {LONG}; answers of {SHORTEST} to {LONGEST} tokens; {found['rate']:g} requests/s, a Poisson process; decode KV caches of {BLOCK * found['blocks']} tokens."
    )
    how = (
        f"{len(runs)} rounds of {found['seconds']:g} s after a warm-up, seeds {found['seeds'][0]} to {found['seeds'][-1]}. In a round, all policies get the same requests, one policy after the "
        "other, and each comes first in turn. ± is half of a 95 % interval over the rounds (Student's t, paired). Engines share the cores with each other: compare rows, not times with other pages."
    )
    words = (
        "*requests only*: the router is not told what KV caches hold, so load is the number of requests, and any engine may have any request. *default*: `MarginalUnion` "
        "with a learned prior. A client that gets 429 comes again after a second; its wait counts. Each run proves its row: the policy in effect, what the router knew of KV "
        "caches, every answer in full, refusals as clients counted them. 95 % of its placements at least follow the rule: a prefill engine answers without a signature now and then."
    )
    return (
        "\n\n".join(
            (
                "# Long contexts on real engines",
                opening,
                how,
                words,
                section("Every policy", _means(runs)),
                section("Against JSQ by requests only", _changes(runs, PLAIN)),
                section("Against the default by requests only", _changes(runs, DEFAULT)),
            )
        )
        + "\n"
    )


def _means(runs: Any) -> str:
    rows = []
    for name in runs[0]:
        values = [
            interval([unit * one[name][what] for one in runs]).text(form, form)
            for _, what, unit, form in _COLUMNS
        ]
        rows.append((name, *values))
    return table(("policy", *(title for title, *_ in _COLUMNS)), rows)


def _changes(runs: Any, base: str) -> str:
    rows = []
    for name in runs[0]:
        if name == base:
            continue
        told = [changes(*([one[which][what] for one in runs] for which in (name, base))) for what in _CHANGES]
        fewer = interval([one[name]["preemptions"] - one[base]["preemptions"] for one in runs])
        rows.append((name, str(fewer), *map(str, told)))
    head = (
        *("policy", "preemptions / 1000", "TPOT mean, %", "P50", "P99"),
        *("first token P99, short, %", "long, %", "latency P50, %", "P99"),
    )
    return table(head, rows)
