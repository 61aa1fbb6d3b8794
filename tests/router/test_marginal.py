"""MarginalUnion on a live router: requests that use the same experts meet, and nothing is forgotten or left behind."""

import asyncio
import contextlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from eldr.contract import (
    METRIC_ACTIVE_EXPERTS,
    METRIC_BATCH_SIZE,
    METRIC_COUNTING,
    METRIC_INFO,
    METRIC_STEP_SECONDS,
)
from eldr.core.step_time import StepTime
from eldr.wire import ExpertCounts, encode_counts
from eldr_router.engines.exposition import Sums
from eldr_router.placement.signature import read_signature
from tests.fakes.engines import answer, dies_after, reset, slow
from tests.router.conftest import signature, until
from tests.router.test_explain import ask
from tests.router.test_full_engines import prefill_after
from tests.router.test_routing import GOOD

KINDS = {"a": signature(500, 500, 0, 0, 500, 500, 0, 0), "b": signature(0, 0, 500, 500, 0, 0, 500, 500)}
OTHER = encode_counts(ExpertCounts(np.full((3, 8), 2, np.uint16), top_k=4, tokens=4, exact=True))
POLICY = {"policy": "MarginalUnion"}


def active(router, *engines):
    """Expected active experts if nothing but what is known were in flight."""
    unions = router.app.services.placer.locality.unions
    return unions.outlook(None, engines or ("d0", "d1"), [0] * len(engines or "01")).active


@contextlib.asynccontextmanager
async def held(router, kinds):
    """Hold a stream of each kind open, one after the other; yields the engines that they are on."""
    release, engines = asyncio.Event(), []
    async with contextlib.AsyncExitStack() as streams:
        for kind in kinds:
            router.play(slow(release))
            router["p0"].eldr = KINDS.get(kind)
            response = await streams.enter_async_context(router.stream())
            engines.append(response.headers["x-eldr-decode"])
            for name in ("d0", "d1"):
                if router[name].script and name != engines[-1]:
                    router[name].script.pop()
        yield engines
        release.set()


async def test_requests_that_use_the_same_experts_meet(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        async with held(router, "abababba") as engines:
            by_kind = {
                kind: {e for k, e in zip("abababba", engines, strict=True) if k == kind} for kind in "ab"
            }
            assert len(by_kind["a"]) == len(by_kind["b"]) == 1
            assert by_kind["a"] != by_kind["b"]
            assert router.counter("placements", policy="MarginalUnion", reason="union") == 8
            assert max(active(router)) < 3, "each engine's batch uses its own half of the experts"
        await until(router.idle, "the streams to end")
        assert active(router) == [0.0, 0.0]


async def test_what_is_explained_is_what_happens(start):
    async with start("p0", "d0", "d1", **POLICY) as router, held(router, "ab") as engines:
        got = (await ask(router, {"eldr": KINDS["a"]})).json()
        rows = {row["name"]: row for row in got["engines"]}
        assert (got["policy"], got["reason"]) == ("MarginalUnion", "union")
        assert got["choice"] == engines[0] == min(rows, key=lambda name: rows[name]["cost_seconds"])
        assert rows[engines[0]]["growth"] < 0.5 < rows[engines[1]]["growth"]
        assert rows[engines[0]]["active_experts"] == pytest.approx(2, abs=0.7)
        again = (await ask(router, {"eldr": KINDS["a"]})).json()
        assert again == got, "a dry run changes nothing"


async def test_without_a_set_kinds_keep_their_engines_also_where_nothing_is_in_flight(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        went = {"a": [], "b": []}
        for kind in "abba" * 10:
            router["p0"].eldr = KINDS[kind]
            went[kind].append((await router.post()).headers["x-eldr-decode"])
        assert {tuple(set(engines[10:])) for engines in went.values()} == {("d0",), ("d1",)}
        got = (await ask(router, {"eldr": KINDS["a"]})).json()
        rows = {row["name"]: row for row in got["engines"]}
        assert (got["prior"], got["choice"]) == ("learned", went["a"][-1])
        assert got["choice"] == max(rows, key=lambda name: rows[name]["similarity"])
        assert {row["in_band"] for row in rows.values()} == {None}
        text = (await router.client.get(f"{router.admin}/metrics")).text
        assert "eldr_router_similarity_count 0" in text, "that counts cosines to centroids"


async def test_nothing_is_left_of_requests_that_failed(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        router["p0"].eldr = KINDS["a"]
        for name in ("d0", "d1"):
            router[name].release.set()
            router[name].script += [reset, dies_after(1), answer(500, {}), answer(429, {})]
        for stream in (True, False) * 4:
            await router.post(stream=stream)
        release = asyncio.Event()
        for name in ("d0", "d1"):
            router[name].script = type(router[name].script)([slow(release)])
        async with router.stream() as response:
            async for _ in response.aiter_raw():
                break
        await until(router.idle, "the stream that its client left to be over")
        release.set()
        assert active(router) == [0.0, 0.0]


async def test_requests_without_a_signature_count_as_the_mean(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        assert (await router.post()).status_code == 200
        assert router.counter("placements", policy="JSQ", reason="no_signature") == 1, "nothing is known yet"
        async with held(router, "a-") as engines:
            assert engines[0] != engines[1]
            assert router.counter("placements", policy="MarginalUnion", reason="no_signature") == 1
        await router.post(n=2)
        assert router.counter("placements", policy="MarginalUnion", reason="whole") == 1


@pytest.mark.slow
async def test_a_policy_may_be_changed_while_requests_run(start):
    async with start("p0", "d0", "d1", policy="JSQ") as router:
        async with held(router, "ab"):
            assert router.app.services.placer.locality.unions is None, "what no policy asks for is not kept"
            await router.configure(**POLICY)
            assert (await router.state())["policy"] == "MarginalUnion"
            async with held(router, "ab") as engines:
                assert len(set(engines)) == 2, "those from before count as the mean: load still matters"
                await router.configure(policy="JSQ")
                assert router.app.services.placer.locality.unions is None
        await until(router.idle, "the streams to end")


async def test_engines_that_serve_another_model_are_noticed(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        async with held(router, "a"):
            router["p0"].eldr = OTHER
            for _ in range(30):
                await router.post()
            assert router.counter("placements", reason="wrong_shape") == 20
            assert router.app.services.placer.locality.unions.shape[:3] == (3, 8, 4)
        await until(router.idle, "the stream of the model before to end")
        assert active(router) == [0.0, 0.0]


@pytest.mark.slow
async def test_a_request_of_the_policy_before_begins_nothing(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        release = asyncio.Event()

        router["p0"].eldr = KINDS["a"]
        router["p0"].script.append(partial(prefill_after, release))
        task = asyncio.ensure_future(router.post())
        await until(lambda: router["p0"].requests, "the prefill to begin")
        await router.configure(policy="JSQ")
        release.set()
        assert (await task).status_code == 200
        assert (await router.state())["locality"] is None


async def test_requests_of_two_centroid_sets_do_not_begin_anew_in_turn(start, tmp_path):
    file = tmp_path / "c.eldr"
    file.write_bytes(GOOD)
    async with start("p0", "d0", "d1", settings={"centroids": file}, **POLICY) as router:
        router["p0"].eldr = signature(4, 0, 0, 0, 0, 0, 0, 4)
        locality, old = router.app.services.placer.locality, router.app.services.table
        await router.post()
        unions = locality.unions
        placer = router.app.services.placer
        for table in (old, replace(old, centroids=None)) * 4:
            placer.place(table, read_signature(router["p0"].eldr)).occupancy.release()
        assert locality.unions is unions


async def test_a_signature_that_cannot_be_breaks_nothing(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        bad = encode_counts(
            ExpertCounts(np.full((2, 4), 2**32 - 1, np.uint32), top_k=2, tokens=1, exact=False)
        )
        for eldr in (bad, KINDS["a"], bad):
            router["p0"].eldr = eldr
            assert (await router.post()).status_code == 200
        for n in (1, 2, 8, 40):
            assert (await router.post(n=n)).status_code == 200
        assert router.app.services.placer.locality.unions.mean.max() <= 1


async def test_a_dry_run_begins_nothing(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        router["p0"].eldr = KINDS["a"]
        await router.post()
        for _ in range(30):
            assert (await ask(router, {"eldr": OTHER})).json()["reason"] == "wrong_shape"
        assert router.app.services.placer.locality.unions.shape[:3] == (2, 4, 2)


@pytest.mark.slow
async def test_an_engine_that_goes_is_forgotten(start):
    async with start("p0", "d0", "d1", **POLICY) as router:
        router["p0"].eldr = KINDS["a"]
        await router.post()
        gone = router.engines.pop("d1")
        await router.configure(**POLICY)
        assert set(router.app.services.placer.locality.unions.table()) <= {"d0"}
        await router.post()
        router.engines["d1"] = gone


async def test_settings_are_in_effect(start):
    async with start("p0", "d0", **POLICY, max_load=1.25, prior=0) as router:
        policy = router.app.services.table.policy
        assert (policy.max_load, policy.prior) == (1.25, 0)


def told(step_time):
    """Metrics of an engine whose steps follow a step-time model, further on with every answer."""
    rng, sums = np.random.default_rng(1), Sums()

    async def metrics(exchange):
        nonlocal sums
        batch, active = rng.uniform(2, 20), rng.uniform(2, 8)
        step = (1, step_time.seconds(batch, active), active, batch)
        sums = Sums(*(a + 100 * b for a, b in zip(sums, step, strict=False)))
        names = (
            f"{METRIC_STEP_SECONDS}_count",
            *(f"{m}_sum" for m in (METRIC_STEP_SECONDS, METRIC_ACTIVE_EXPERTS, METRIC_BATCH_SIZE)),
        )
        text = (
            "\n".join(f'{name}{{engine="0"}} {value}' for name, value in zip(names, sums, strict=False))
            + "\n"
        )
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text.encode()))

    return metrics


async def test_what_an_engine_says_of_its_plug_in_is_told_in_the_state_until_another_takes_its_place(
    start,
):
    def says(tested):
        counting = 0.0 if tested == "false" else 1.0
        text = (
            f'{METRIC_INFO}{{engine="0",vllm="0.34.1",tested="{tested}"}} 1.0\n'
            f'{METRIC_COUNTING}{{engine="0"}} {counting}\n'
        ).encode()
        return lambda exchange: exchange.send(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)
        )

    async with start("p0", "d0", **POLICY) as router:
        for tested, told in (("false", "0.34.1"), ("true", None)):
            router["d0"].metrics = says(tested)
            router.app._engine_metrics._due.clear()
            await router.app._engine_metrics.step()
            (engine,) = (await router.state())["decode"]
            assert (engine["untested"], engine["counting"]) == (told, told is None)


async def test_step_times_are_learned_from_the_engines_own_metrics(start):
    slow_step_time, fast_step_time = (
        StepTime(factor * 4e-3, factor * 2e-3, factor * 1e-4, 4) for factor in (2, 1)
    )
    async with start("p0", "d0", "d1", **POLICY) as router:
        router["d0"].metrics, router["d1"].metrics = told(slow_step_time), told(fast_step_time)
        router["p0"].eldr = KINDS["a"]
        steps, state = router.app._engine_metrics, (await router.state())
        assert state["step_time"] is None, "nothing is known yet"
        await router.post()
        for _ in range(60):
            steps._due.clear()
            steps._learn_at = 0.0
            await steps.step()
            steps._due = {endpoint: 1e18 * (endpoint.name == "d0") for endpoint in steps._due}
            await steps.step()
        step_time = (await router.state())["step_time"]
        assert step_time["per_expert"] == pytest.approx(1.5 * 2e-3, rel=0.4), "of one between the two"
        slow_one, fast_one = step_time["engines"]["d0"], step_time["engines"]["d1"]
        assert slow_one["per_expert"] == pytest.approx(2 * fast_one["per_expert"], rel=0.1)
        assert 0.3 < step_time["expert_share"] < 1
        await router.post()
        assert (await router.post()).headers["x-eldr-decode"] == "d1", "nothing runs: the fast one"
        text = (await router.client.get(f"{router.admin}/metrics")).text
        assert f"eldr_router_expert_share {step_time['expert_share']:.2f}"[:-1] in text
        assert 'eldr_router_step_time_model_seconds{constant="per_expert",endpoint="d0"}' in text
        assert 'eldr_router_expected_active_experts{endpoint="d1"} 0.0' in text
