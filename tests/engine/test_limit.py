"""What the plug-in's limit reads of an engine's configuration, and what it does to vLLM's own application."""

import asyncio
import importlib
import pkgutil
from types import SimpleNamespace

import httpx
import pytest
import vllm.entrypoints
from fastapi import APIRouter, FastAPI
from prometheus_client import REGISTRY

from eldr.contract import METRIC_IN_FLIGHT, METRIC_REFUSED, PATH_LOAD
from eldr.engine.hooks.endpoint import ActivationsEndpoint
from eldr.engine_limit import GENERATES, NO_LIMIT

ONE = SimpleNamespace(api_server_count=1, port=8000)


BESIDE_NIXL = ("NixlConnector", "EldrConnector")


def config(role="kv_consumer", *, ranks=1, connector="MultiConnector", children=BESIDE_NIXL):
    extra = (
        {"connectors": [{"kv_connector": name} for name in children]} if connector == "MultiConnector" else {}
    )
    transfer = SimpleNamespace(
        kv_role=role,
        kv_connector=connector,
        kv_connector_extra_config=extra,
        engine_id="nobody-made-its-ring",
    )
    transfer = transfer if role else None
    return SimpleNamespace(
        kv_transfer_config=transfer,
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
    )


def served(config, args=ONE):
    """Return an application with the plug-in."""
    app, plugin = FastAPI(), ActivationsEndpoint()

    @app.post("/v1/completions")
    async def completions() -> dict:
        return {"in_flight": REGISTRY.get_sample_value(METRIC_IN_FLIGHT)}

    plugin.attach_router(app)
    asyncio.run(plugin.init_state(SimpleNamespace(vllm_config=config), app.state, args))
    return app


def ask(app, path="/v1/completions", **options):
    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://e") as client:
            return await (
                client.get(path)
                if path == PATH_LOAD
                else client.post(path, **{"json": {"prompt": "a"}} | options)
            )

    return asyncio.run(ask())


def test_an_engine_holds_to_what_it_can_run():
    app = served(config(ranks=2))
    answer = ask(app)
    assert (answer.status_code, answer.headers["x-eldr-load"], answer.json()) == (
        200,
        "1/8",
        {"in_flight": 1.0},
    )
    assert ask(app, PATH_LOAD).json() == {"v": 1, "in_flight": 0, "limit": 8}
    assert REGISTRY.get_sample_value(METRIC_IN_FLIGHT) == 0
    before = REGISTRY.get_sample_value(f"{METRIC_REFUSED}_total")
    with_many = ask(app, json={"prompt": "a", "n": 9})
    assert (with_many.status_code, with_many.headers["x-eldr-load"]) == (200, "9/8"), "one place was free"
    assert REGISTRY.get_sample_value(f"{METRIC_REFUSED}_total") == before


def test_an_engine_without_a_connector_has_a_limit_too_and_logs_no_error(caplog):
    app = served(config(None))
    assert ask(app).headers["x-eldr-load"] == "1/4"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_prefill_engine_reports_its_load_and_refuses_nothing():
    app = served(config("kv_producer"))
    assert ask(app, json={"prompt": "a", "n": 60000}).headers["x-eldr-load"] == f"60000/{NO_LIMIT}"
    assert ask(app, PATH_LOAD).json() == {"v": 1, "in_flight": 0, "limit": NO_LIMIT}


@pytest.mark.parametrize(
    ("role", "connector"), [("kv_producer", "EldrConnector"), ("kv_both", "MultiConnector")]
)
def test_an_engine_that_does_both_has_a_limit(role, connector):
    """It has no transport, or another connector beside ours."""
    assert ask(served(config(role, connector=connector))).headers["x-eldr-load"] == "1/4"


@pytest.mark.parametrize(
    ("config", "args"),
    [
        (config(), SimpleNamespace(api_server_count=2, port=8000)),
        (config(), SimpleNamespace()),
        (SimpleNamespace(), ONE),
    ],
    ids=["missing folder", "renamed argument", "renamed field"],
)
def test_an_engine_whose_limit_cannot_be_had_serves_without(monkeypatch, config, args):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    answer = ask(served(config, args))
    assert answer.status_code == 200
    assert "x-eldr-load" not in answer.headers


def test_an_engine_that_pulls_and_keeps_no_deadline_reports_no_load():
    """Routers take it that whoever reports refuses late pulls."""
    alone = config(connector="NixlConnector"), config(children=("NixlConnector", "OffloadingConnector"))
    for engine in alone:
        assert "x-eldr-load" not in ask(served(engine)).headers


@pytest.mark.parametrize("servers", [None, 1, 2])
def test_api_servers_of_one_engine_share_a_file(tmp_path, monkeypatch, servers):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    app = served(config(), SimpleNamespace(api_server_count=servers, port=8000))
    assert ask(app).headers["x-eldr-load"] == "1/4"
    assert (tmp_path / "eldr-in-flight-8000").exists() == (servers == 2)


def test_every_path_that_generates_is_known():
    """Requests to one that a release adds would pass the limit."""
    found = set()
    for module in pkgutil.walk_packages(vllm.entrypoints.__path__, "vllm.entrypoints."):
        parts = set(module.name.split("."))
        if "api_router" in parts and not parts & {"serve", "rl", "pooling", "render", "derender"}:
            for router in vars(importlib.import_module(module.name)).values():
                if isinstance(router, APIRouter):
                    found |= {
                        route.path for route in router.routes if "POST" in getattr(route, "methods", ())
                    }
    found = {path for path in found if not path.endswith(("/cancel", "/count_tokens", "/abort_requests"))}
    assert {"/v1/completions", "/v1/messages", "/generative_scoring"} <= found <= GENERATES
