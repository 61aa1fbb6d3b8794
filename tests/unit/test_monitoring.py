"""The chart's alerts and dashboard: what they name exists, and every alert has a section that says what to do."""

import json
import re
from pathlib import Path

import pytest
import yaml

from eldr_operator.metrics import FIT_REASONS
from tests.support.exported import exported

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "eldr" / "files"
REFERENCE = ROOT / "docs" / "reference"
TARGET = {"namespace", "pod", "deployment", "job"}
"""Labels that the chart's PodMonitors give to the series of a pod."""
RULES = [
    rule for group in yaml.safe_load((FILES / "rules.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
PANELS = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in DASHBOARD["panels"]}
QUERIES = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
    *(
        pytest.param(query, id=f"{title}-{n}")
        for title, all_ in PANELS.items()
        for n, query in enumerate(all_)
    ),
    *(
        pytest.param(one["query"]["query"], id=one["name"])
        for one in DASHBOARD["templating"]["list"]
        if one["type"] == "query"
    ),
]
_SERIES = re.compile(r"\b((?:eldr_(?:operator|router|engine)_|vllm:)\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


@pytest.fixture(scope="module")
def series():
    return exported()


@pytest.mark.parametrize("query", QUERIES)
def test_series_and_labels_of_queries_are_exported(series, query):
    found = _SERIES.findall(query)
    assert found
    for name, matchers in found:
        assert name in series
        labels = {label for label, _ in _MATCHER.findall(matchers)}
        assert labels <= series[name] | TARGET
    grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(",")}
    assert grouped <= TARGET.union(*(series[name] for name, _ in found))


@pytest.mark.parametrize("query", QUERIES)
def test_values_of_labels_are_documented(query):
    text = "".join((REFERENCE / f"{page}.md").read_text() for page in ("conditions", "metrics", "operator"))
    known = set(re.findall(r"\w+", text)) | {"EldrDeployment"}
    for _, matchers in _SERIES.findall(query):
        for _, values in _MATCHER.findall(matchers):
            assert {value for value in values.split("|") if not value.startswith("$")} <= known


def test_the_alert_of_fits_leaves_out_results_that_are_no_fault():
    (rule,) = (rule for rule in RULES if rule["alert"] == "EldrFitsFail")
    ((_, matchers),) = _SERIES.findall(rule["expr"])
    ((_, reasons),) = _MATCHER.findall(matchers)
    assert set(FIT_REASONS) - set(reasons.split("|")) == {
        "Accepted",
        "Rejected",
        "Regresses",
        "Deleted",
        "TooManyWaiting",
    }


def test_the_list_of_conditions_leaves_out_states_that_call_for_nothing():
    """Reasons of CentroidsActive that the reference calls healthy: the default policy has one of them for its first hours."""
    (query,) = (
        one for one in PANELS["Conditions that are not as they should be"] if "CentroidsActive" in one
    )
    ((_, matchers),) = _SERIES.findall(query)
    left_out = next(values for label, values in _MATCHER.findall(matchers) if label == "reason")
    assert set(left_out.split("|")) == {"LearnedPrior", "PolicyIgnoresCentroids", "Staging"}
    assert f'reason!~"{left_out}"' in query
    text = (REFERENCE / "conditions.md").read_text()
    assert re.search(r"^\| \| LearnedPrior \| False, and nothing is missing", text, re.MULTILINE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happens_what_to_do_and_where_to_read(rule):
    told = rule["annotations"]
    assert told.keys() == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert told["runbook_url"].endswith(f"/docs/reference/alerts.md#{rule['alert'].lower()}")


def test_every_alert_has_a_section_and_every_section_an_alert():
    text = (REFERENCE / "alerts.md").read_text()
    sections = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]
