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


def test_kubectl_explain_names_every_condition():
    of_deployments = CONDITIONS.partition("## EldrFit")[0]
    types = {
        name.strip()
        for row in re.findall(r"^\| ([A-Z][A-Za-z, ]+) \|", of_deployments, re.MULTILINE)
        for name in row.split(",")
    }
    crd = yaml.safe_load((ROOT / "crds" / "eldr.dev_eldrdeployments.yaml").read_text())
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    told = status["properties"]["conditions"]["description"]
    assert {"Ready", "Degraded", "DriftDetected"} <= types
    assert {name for name in types if name not in told} == set()


def test_every_metric_is_described():
    text = (ROOT / "docs" / "reference" / "operator.md").read_text()
    for metric in Metrics().registry.collect():
        assert f"`{metric.name}" in text


def described(schema, where):
    yield where, schema.get("description", "")
    for name, field in schema.get("properties", {}).items():
        yield from described(field, f"{where}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from described(schema[key], f"{where}[]")


def numbers(schema, where):
    if schema.get("type") == "number":
        yield where
    for name, field in schema.get("properties", {}).items():
        yield from numbers(field, f"{where}.{name}")


@pytest.mark.parametrize("path", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_field_is_described_and_none_is_a_float(path):
    crd = yaml.safe_load(path.read_text())
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    empty = [where for where, text in described(schema, "") if not text and where != ".metadata"]
    assert empty == []
    assert list(numbers(schema, "")) == []
    assert all(
        re.fullmatch(r"[A-Z][A-Za-z-]*", column["name"]) for column in version["additionalPrinterColumns"]
    )
