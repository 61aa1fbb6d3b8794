"""What a study found, for people: a table and a sentence for each setting."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from eldr import contract
from eldr.simulate.advice import MAPPING
from eldr.simulate.outcome import BUSIEST, MOST_WAITED

_WORTH_A_WORD = 1e-3  # of TPOT
_KEEPS_UP = (
    f"Served counts rates only that the pool keeps up with: at most {100 * MOST_WAITED:g} % of the requests find their engine without "
    f"room, and prefill engines compute less than {100 * BUSIEST:g} % of the time. Beyond, the time per token may stay the same while "
    "requests queue; values of --rate between the last that is kept up with and the next tell more."
)


def words(setting: dict[str, Any]) -> str:
    """Return what one setting's figures say, in some sentences; the last one says what to set."""
    sentences = [*_verdict(setting), _to_set(setting)]
    if setting["prefill_busy"]:
        sentences.insert(-1, "Placement cannot help much here: prefill engines have no time left.")
    return " ".join(sentences)


def _verdict(setting: dict[str, Any]) -> list[str]:
    name = setting["policies"][0]["policy"]
    if (best := _winner(setting)) is None:
        return [f"No policy shortens the mean time per token against {name} by more than chance would."]
    most = (
        f"{best['policy']} brings most: time per token {_percent(best['change']['tpot_mean'])} in the mean, "
        f"{_percent(best['change']['tpot_p50'])} at P50, {_percent(best['change']['tpot_p99'])} at P99 against {name}."
    )
    sentences = [most]
    if setting["level"]:
        sentences.append(f"So few seeds do not tell it apart in the mean from {', '.join(setting['level'])}.")
    if (calm := _calmest(setting, best)) is not best:
        sentences.append(
            f"The shortest tail has {calm['policy']}: {_percent(calm['change']['tpot_p99'])} at P99, "
            f"{_percent(calm['change']['tpot_mean'])} in the mean."
        )
    return sentences


def _to_set(setting: dict[str, Any]) -> str:
    best = _winner(setting)
    if best is None:
        return "Leave spec.router.policy as it is."
    # of those that seeds do not tell apart in the mean, the one with the shortest tail: nobody loses by it
    level = [row for row in setting["policies"] if row["policy"] in setting["level"]]
    choice = min((row for row in (best, *level) if row["set"] is not None), key=_tail, default=None)
    if choice is None:
        return f"No router offers {best['policy']}: it is here to compare with."
    calm = _calmest(setting, choice)
    if calm["set"] is None or _fields(calm) == _fields(choice):
        return f"Set {choice['set']}."
    return f"For the mean set {choice['set']}; for the tail {calm['set']}."


def _tail(row: dict[str, Any]) -> float:
    return float(row["tpot_p99"])


def _fields(row: dict[str, Any]) -> str:
    """Return what is set, without the remarks: one setting may be two rows."""
    return str(row["set"]).partition(" (")[0]


def _winner(setting: dict[str, Any]) -> dict[str, Any] | None:
    """Return the policy with the least mean, None where it may be chance or is worth no word."""
    best: dict[str, Any] = next(row for row in setting["policies"] if row["policy"] == setting["best"])
    chance = setting["policies"][0]["policy"] in setting["level"]
    return None if chance or best["change"]["tpot_mean"][0] > -_WORTH_A_WORD else best


def _calmest(setting: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Return the policy with the shortest tail where it is clearly shorter than that of the best mean, else that one."""
    calm: dict[str, Any] = min(setting["policies"][1:], key=lambda row: row["tpot_p99"])
    return calm if calm["tpot_p99"] < best["tpot_p99"] * 0.99 else best


_CHOSEN = {"tokens": "vLLM's hash of tokens", "greedy": "METRO's greedy way", "exact": "METRO, exactly"}


def _percent(found: list[float | None], unit: str = " %") -> str:
    mean, half_width = found
    text = f"{100 * (mean or 0.0):+.1f}"
    return text + unit if half_width is None else f"{text} ±{100 * half_width:.1f}{unit}"


def print_text(report: dict[str, Any], console: Console) -> None:
    """Write what was found as tables with a sentence below each."""
    law = report["law"]
    several = any(setting["ranks"] > 1 for setting in report["settings"])
    of = " of the fullest rank" if several else ""
    console.print(report["requests"], highlight=False, markup=False)
    console.print(
        f"A decode step takes {1e3 * law['fixed']:.2f} ms, {1e6 * law['per_expert']:.0f} us for each active expert{of} "
        f"and {1e6 * law['per_request']:.0f} us for each request of the batch.",
        highlight=False,
        markup=False,
    )
    for setting in report["settings"]:
        console.print(_table(setting))
        console.print(words(setting), highlight=False, markup=False)
    if "objective" in report:
        _print_objective(report["objective"], console)
    if any(row["policy"].startswith(contract.POLICY_MARGINAL) for row in report["settings"][0]["policies"]):
        console.print(MAPPING, highlight=False, markup=False)
    for note in report["notes"]:
        console.print(f"Note: {note}", highlight=False, markup=False)


def _print_objective(objective: dict[str, Any], console: Console) -> None:
    name = objective["measure"].removeprefix("tpot_").replace("p", "P").replace("mean", "a mean")
    for pool in objective["pools"]:
        title = f"{pool['engines']} engines: requests per second within {name} of {_time(objective['seconds'])} per token"
        console.print(title, highlight=False)
        table = Table(box=None, pad_edge=False)
        table.add_column("policy", no_wrap=True)
        table.add_column("served", justify="right", no_wrap=True)
        table.add_column("keeps up to", justify="right", no_wrap=True)
        for policy in pool["policies"]:
            table.add_row(policy["policy"], _served(policy), f"{policy['keeps_up']:g}")
        console.print(table)
    console.print(_KEEPS_UP, highlight=False, markup=False)


def _served(policy: dict[str, Any]) -> str:
    rate, half_width = policy["served"]
    if not rate:
        return "fewer than the lowest rate"
    text = f"{rate:.1f}" if half_width is None else f"{rate:.1f} ±{half_width:.1f}"
    return f"{text}, at least" if policy["at_least"] else f"{text}, at most" if policy["at_most"] else text


def _table(setting: dict[str, Any]) -> Table:
    baseline, *others = setting["policies"]
    name = baseline["policy"]
    engines = f"{setting['engines']} engines"
    if setting["ranks"] > 1:
        engines += f" of {setting['ranks']} ranks"
    if (replicas := setting["replicas"]) is not None:
        engines += f" with {replicas['ratio']:g} physical experts per expert, placed by {replicas['placing']}"
        engines += f" and chosen by {_CHOSEN[replicas['balance']]}" if replicas["ratio"] > 1 else ""
    title = f"{engines}, {setting['rate']:.3g} requests/s, batch {baseline['batch']:.1f} with {name}"
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
