"""Results of a study, for people: first what to set, then the figures."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from eldr import contract
from eldr.simulate.advice import MAPPING

_WORTH_A_WORD = 1e-3  # of TPOT


def recommendation(setting: dict[str, Any]) -> str:
    """Return what to set in the EldrDeployment, and what that changes: milliseconds per token against the first policy."""
    first = setting["policies"][0]
    choice = _choice(setting)
    if choice is None:
        return (
            "Leave spec.router.policy as it is: no policy shortens the mean time per token against "
            f"{first['policy']} by more than chance would."
        )
    figures = [
        f"{name} {_time(choice[field])} instead of {_time(first[field])} ({_percent(choice['change'][field])}{_chance(choice, field)})"
        for name, field in (("mean", "tpot_mean"), ("P50", "tpot_p50"), ("P99", "tpot_p99"))
    ]
    return f"Set {choice['set']}. Time per token against {first['policy']}: {', '.join(figures)}."


def details(setting: dict[str, Any]) -> str:
    """Return other conclusions for one setting; empty if there are none."""
    if (choice := _choice(setting)) is None:
        return ""
    sentences = []
    if setting["level"]:
        sentences.append(
            f"In the mean these seeds do not separate {', '.join(setting['level'])} from {setting['best']}."
        )
    if (calm := _calmest(setting, choice)) is not choice and _fields(calm) != _fields(choice):
        sentences.append(
            f"{calm['policy']} has the shortest tail: P99 {_percent(calm['change']['tpot_p99'])}, mean "
            f"{_percent(calm['change']['tpot_mean'])}. To prefer it, set {calm['set']}."
        )
    return " ".join(sentences)


def _choice(setting: dict[str, Any]) -> dict[str, Any] | None:
    """Return the policy to set: of those that shorten the mean and are level with the best one, the one with the shortest tail."""
    shorter = [row for row in setting["policies"][1:] if _shortens(row)]
    level = [row for row in shorter if row["policy"] in (setting["best"], *setting["level"])]
    return min(level or shorter, key=_tail, default=None)


def _shortens(row: dict[str, Any]) -> bool:
    """Return whether a policy's mean is shorter than the first policy's by more than chance, and worth a word."""
    mean, half_width = row["change"]["tpot_mean"]
    return bool(mean <= -_WORTH_A_WORD and mean + (half_width or 0.0) < 0)


def _chance(row: dict[str, Any], field: str) -> str:
    mean, half_width = row["change"][field]
    return "" if half_width is None or abs(mean) > half_width else ", within chance"


def _tail(row: dict[str, Any]) -> float:
    return float(row["tpot_p99"])


def _fields(row: dict[str, Any]) -> str:
    """Return what is set, without the remarks: one setting may be two rows."""
    return str(row["set"]).partition(" (")[0]


def _calmest(setting: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Return the policy with the shortest tail where it is clearly shorter than that of the best mean, else that one."""
    calm: dict[str, Any] = min(setting["policies"][1:], key=lambda row: row["tpot_p99"])
    return calm if calm["tpot_p99"] < best["tpot_p99"] * 0.99 else best


def _percent(interval: list[float | None], unit: str = " %") -> str:
    mean, half_width = interval
    text = f"{100 * (mean or 0.0):+.1f}"
    return text + unit if half_width is None else f"{text} ±{100 * half_width:.1f}{unit}"


def print_text(report: dict[str, Any], console: Console) -> None:
    """Write the results as tables with a sentence below each."""
    step_time = report["step_time"]
    settings = report["settings"]
    for setting in settings:
        which = f"{_where(setting)}: " if len(settings) > 1 else ""
        console.print(which + recommendation(setting), highlight=False, markup=False)
    console.print(report["requests"], highlight=False, markup=False)
    console.print(
        f"A decode step takes {1e3 * step_time['fixed']:.2f} ms, {1e6 * step_time['per_expert']:.0f} us for each active expert "
        f"and {1e6 * step_time['per_request']:.0f} us for each request of the batch.",
        highlight=False,
        markup=False,
    )
    for setting in settings:
        console.print(_table(setting))
        if said := details(setting):
            console.print(said, highlight=False, markup=False)
    if any(row["policy"].startswith(contract.POLICY_MARGINAL) for row in settings[0]["policies"]):
        console.print(MAPPING, highlight=False, markup=False)
    for note in report["notes"]:
        console.print(f"Note: {note}", highlight=False, markup=False)


def _table(setting: dict[str, Any]) -> Table:
    baseline, *others = setting["policies"]
    name = baseline["policy"]
    title = f"{_where(setting)}, batch {baseline['batch']:.1f} with {name}"
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


def _where(setting: dict[str, Any]) -> str:
    return f"{setting['engines']} engines, {setting['rate']:.3g} requests/s"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
