"""All checks of a deployment, as lines and as JSON. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from eldr.doctor import conditions, devices, model, network, pods, quota, references, routers
from eldr.doctor.facts import Check, Facts, Finding, Skipped

VERSION: Final = 1
"""Of the JSON document; fields may be added, none changes its meaning."""
CHECKS: Final = (
    Check("images", pods.images),
    Check("devices", devices.accelerators),
    Check("rdma", devices.rdma),
    Check("quota", quota.look),
    Check("references", references.look),
    Check("model", model.look),
    Check("containers", pods.containers),
    Check("network", network.look),
    Check("routers", routers.look),
)
CONDITIONS: Final = "conditions"
"""The check that comes last: the others may explain what it says."""
_NAMED: Final = 3
"""Pods that a finding names."""
_KUBECTL: Final = re.compile(r"\bkubectl (?!get pods -A)")
_RESTARTS: Final = re.compile(r"\d+ restarts")
_LABEL: Final = 12
_INDENT: Final = " " * _LABEL


@dataclass(frozen=True, slots=True)
class Result:
    """What a check says.

    Attributes
    ----------
    skipped : tuple of str
        What it could not look at.
    """

    check: str
    problems: tuple[Finding, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What all of them say."""

    name: str
    namespace: str
    at: datetime
    results: tuple[Result, ...]

    @property
    def problems(self) -> int:
        """How many there are."""
        return sum(len(result.problems) for result in self.results)


def examine(facts: Facts, now: datetime) -> Report:
    """Run all checks; what another one explains is left out."""
    said = {check.name: list(check.look(facts)) for check in CHECKS}
    said[CONDITIONS] = list(conditions.look(facts, now))
    findings = [one for some in said.values() for one in some if isinstance(one, Finding)]
    explained = {reason for one in findings for reason in one.explains}
    has_causes = any(not one.is_symptom for one in findings)
    results = [
        _result(
            name,
            [one for one in some if not _is_reported(one, explained, has_causes=has_causes)],
            facts.namespace,
        )
        for name, some in said.items()
    ]
    return Report(facts.name, facts.namespace, now, tuple(results))


def _is_reported(said: Finding | Skipped, explained: set[str], *, has_causes: bool) -> bool:
    """Tell whether other findings say it, and why it is so."""
    return isinstance(said, Finding) and (said.reason in explained or (said.is_symptom and has_causes))


def _result(name: str, said: list[Finding | Skipped], namespace: str) -> Result:
    problems = _merged(one for one in said if isinstance(one, Finding))
    placed = (one._replace(remedy=_KUBECTL.sub(f"kubectl -n {namespace} ", one.remedy)) for one in problems)
    skipped = dict.fromkeys(one.why for one in said if isinstance(one, Skipped))
    return Result(name, tuple(placed), tuple(skipped))


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for pods with the same problem: replicas have most of their problems in common."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        kind, _, pod = one.about.partition("pod ")
        about, pod = ("", pod) if pod and not kind else (one.about, one.about)
        problem = _RESTARTS.sub("", one.problem.replace(pod, ""))
        groups.setdefault((about, problem, one.remedy.replace(pod, "")), []).append(one)
    return [_of_pods(group) for group in groups.values()]


def _of_pods(group: list[Finding]) -> Finding:
    pods = list(dict.fromkeys(one.about.removeprefix("pod ") for one in group))
    if len(pods) == 1:
        return group[0]
    others = f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
    return group[0]._replace(about=f"pods {', '.join(pods[:_NAMED])}{others}")


def document(report: Report) -> dict[str, Any]:
    """Return the report as JSON; see ``docs/reference/doctor.md``."""
    return {
        "version": VERSION,
        "name": report.name,
        "namespace": report.namespace,
        "at": report.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "problems": [
            {"check": result.check, "about": one.about, "problem": one.problem, "remedy": one.remedy}
            for result in report.results
            for one in result.problems
        ],
        "checks": [
            {"check": result.check, "problems": len(result.problems), "skipped": list(result.skipped)}
            for result in report.results
        ],
    }


def lines(report: Report, width: int) -> Iterator[tuple[str, str]]:
    """Yield the screen, each line with its style."""
    yield (
        f"{report.name} in namespace {report.namespace}, {report.at:%Y-%m-%d %H:%M} UTC: {_count(report)}",
        "bold",
    )
    for result in report.results:
        for one in result.problems:
            yield "", ""
            yield from _entry(result.check, f"{one.about}: {one.problem}", width, "red")
            yield from _entry("", f"do: {one.remedy}", width, "")
    yield "", ""
    for result in report.results:
        yield from _entry(result.check, _summary(result), width, "yellow" if result.skipped else "")


def _count(report: Report) -> str:
    count = report.problems
    return f"{count or 'no'} problem{'' if count == 1 else 's'} found"


def _summary(result: Result) -> str:
    count = len(result.problems)
    words = [f"{count} problem{'' if count == 1 else 's'}"] if count else []
    words += [f"skipped: {why}" for why in result.skipped]
    return "; ".join(words) or "ok"


def _entry(label: str, said: str, width: int, style: str) -> Iterator[tuple[str, str]]:
    # a log or a router's answer may hold what a terminal obeys
    plain = " ".join("".join(one if one.isprintable() else " " for one in said).split())
    parts = textwrap.wrap(plain, max(width - _LABEL, 40), break_on_hyphens=False) or [""]
    for number, part in enumerate(parts):
        yield f"{label if number == 0 else '':<{_LABEL}}{part}", style
