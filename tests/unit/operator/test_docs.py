"""The reference pages name everything that users can meet."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from eldr_operator.metrics import Metrics

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "operator" / "eldr_operator"
CONDITIONS = (ROOT / "docs" / "reference" / "conditions.md").read_text()
MAKERS = {"_says": 1, "Verdict": 1, "Condition": 2, "Problem": 0, "finished": 1, "NextFit": 0}
"""Calls that name a reason, and the position of the reason among the arguments."""


def reasons() -> set[str]:
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:  # a reason and its message, to be made a condition elsewhere
                case ast.Return(value=ast.Tuple(elts=[ast.Constant(value=str() as reason), _])):
                    if re.fullmatch(r"[A-Z][a-z]+[A-Za-z]*", reason):
                        found.add(reason)
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            position = MAKERS.get(name)
            if position is not None and len(node.args) > position:
                argument = node.args[position]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.add(argument.value)
    return found


def test_every_reason_has_a_remedy():
    found = reasons()
    assert {
        "Staging",
        "PinNotFound",
        "JobFailed",
        "InvalidSchedule",
        "ChildRefused",
        "PodsRefused",
        "Protective",
    } <= found
    missing = {
        reason for reason in found - {"InvalidField", "InvalidPodTemplate"} if reason not in CONDITIONS
    }
    assert not missing


def test_every_metric_is_described():
    text = (ROOT / "docs" / "reference" / "operator.md").read_text()
    for metric in Metrics().registry.collect():
        assert f"`{metric.name}" in text


def fields(schema, where=""):
    yield where, schema
    for name, field in schema.get("properties", {}).items():
        yield from fields(field, f"{where}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from fields(schema[key], f"{where}[]")


@pytest.mark.parametrize("path", [*(ROOT / "crds").glob("*.yaml")], ids=lambda path: path.stem)
def test_every_field_is_described_and_none_is_a_float(path):
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    found = dict(fields(version["schema"]["openAPIV3Schema"]))
    assert {where for where, field in found.items() if not field.get("description")} <= {".metadata"}
    assert not [where for where, field in found.items() if field.get("type") == "number"]
