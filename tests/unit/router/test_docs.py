"""Users find every option, metric and state field in the reference."""

import re
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from eldr_router.admin.locality import LocalityMetrics
from eldr_router.api.paths import ANY_ENGINE, APIS
from eldr_router.cli import command
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.placement.choice import REASONS
from eldr_router.placement.locality import Locality
from eldr_router.telemetry.metrics import Metrics

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_options():
    text = (REFERENCE / "router.md").read_text()
    for option in command.params:
        assert f"`{option.opts[0]}`" in text, option.opts[0]
        assert option.help, option.opts[0]


def test_paths():
    rows = [line for line in (REFERENCE / "openai.md").read_text().splitlines() if line.startswith("| `")]
    served = {
        path: row.split("|")[2].strip()
        for row in rows
        for path in re.findall(r"`(?:GET |POST )?(/[^`]+)`", row.split("|")[1])
    }
    assert {path for path, goes in served.items() if goes == "split"} == APIS.keys()
    assert {path for path, goes in served.items() if goes == "any engine"} == ANY_ENGINE.keys()


def test_metrics():
    registry = Registry(time.monotonic)
    registry.replace("decode", [EndpointSpec("decode", "d", "h", 1, 0)])
    metrics = Metrics(registry)
    metrics.add(LocalityMetrics(Locality(), registry))
    families = text_string_to_metric_families(metrics.exposition().decode())
    text = (REFERENCE / "metrics.md").read_text()
    found = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
        if not family.name.endswith("_created")
    }
    documented = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert found == documented
    assert all(f"`{reason}`" in text for reason in REASONS)
