"""The signature log: which requests are kept, and joined with what their decode engine activated."""

import time

import pytest

from eldr import contract
from eldr.siglog import FrameReader
from tests.router.conftest import signature, until
from tests.support.router import AUTH

ONE, DECODED = signature(1, 0, 0, 0, 0, 0, 0, 1), signature(5, 0, 0, 0, 0, 0, 0, 5)


async def records(router):
    reader, found = FrameReader(), []
    async with router.client.stream("GET", router.admin + contract.PATH_SIGLOG, headers=AUTH) as got:
        assert got.status_code == 200
        async for data in got.aiter_bytes():
            found += reader.feed(data)
    assert reader.damaged is None
    return found


@pytest.mark.slow
async def test_sampled_requests_are_logged_with_their_activations(start, tmp_path):
    async with start("p0", "d0", settings={"log_dir": tmp_path / "log"}, model="m") as router:
        router["p0"].eldr = signature(1, 2, 3, 4, 0, 0, 0, 10)
        router["d0"].activations = []
        begun = time.time()
        assert (await router.post()).status_code == 200
        assert (await router.post(headers={contract.HEADER_LOG: "off"})).status_code == 200
        served = router["d0"].requests[0]
        assert contract.HEADER_LOG not in router["d0"].requests[1].headers
        router["d0"].activations += ["x", 7, None, []]
        router["d0"].activations.append({"request_id": f"cmpl-{served.id}-0-1a2b3c4d", **DECODED})
        router["d0"].activations.append({"request_id": f"cmpl-{router['d0'].requests[1].id}", **DECODED})
        await until(lambda: router.app.services.telemetry.joiner.samples, "the record to be written")
        (record,) = await records(router)
        assert record.request_id == contract.base_id(served.id)
        assert record.prefill_counts().tolist() == [[1, 2, 3, 4], [0, 0, 0, 10]]
        assert record.decode_counts().tolist() == [[5, 0, 0, 0], [0, 0, 0, 5]]
        assert (record.engine, record.slot, record.policy, record.model) == ("d0", 0, "MarginalUnion", "m")
        assert record.exact
        assert begun - 1 <= record.time <= time.time()
        assert 0 < record.prefill_seconds <= record.first_byte_seconds <= record.total_seconds
        assert (await router.state())["samples"] == 1
        assert router.counter("log_records", decode="joined") == 1
        assert not any(b"hello" in path.read_bytes() for path in (tmp_path / "log").iterdir()), (
            "never prompt text"
        )


@pytest.mark.slow
async def test_an_answer_of_one_token_is_joined_with_its_empty_record(start, tmp_path):
    settings = {"log_dir": tmp_path / "log", "join_seconds": 1000.0}
    async with start("p0", "d0", settings=settings) as router:
        router["p0"].eldr = ONE
        router["d0"].activations = []
        await router.post()
        empty = signature(0, 0, 0, 0, 0, 0, 0, 0)
        router["d0"].activations.append({"request_id": f"cmpl-{router['d0'].requests[0].id}", **empty})
        await until(lambda: router.app.services.telemetry.joiner.samples, "the record to be written")
        (record,) = await records(router)
        assert (record.decode_tokens, record.decode_exact) == (0, True)


@pytest.mark.slow
async def test_activations_of_a_decode_engine_that_was_restarted_are_read_from_its_first_one(start, tmp_path):
    async with start("p0", "d0", settings={"log_dir": tmp_path / "log"}) as router:
        router["p0"].eldr = ONE
        other = {"request_id": "cmpl-of-somebody-else", **ONE}
        for n, boot in enumerate("bc"):
            router["d0"].boot, router["d0"].activations = boot, [other] * (3 if boot == "b" else 0)
            await router.post()
            decoded = {
                "request_id": f"cmpl-{router['d0'].requests[n].id}",
                **DECODED,
            }
            router["d0"].activations.append(decoded)
            await until(lambda n=n: router.counter("log_records", decode="joined") == n + 1, "the record")


@pytest.mark.slow
@pytest.mark.parametrize("supported", [True, False])
async def test_a_record_is_written_though_activations_never_come(start, tmp_path, supported):
    settings = {"log_dir": tmp_path / "log", "join_seconds": 0.1}
    async with start("p0", "d0", settings=settings) as router:
        router["p0"].eldr = ONE
        router["d0"].activations = [] if supported else None
        await router.post()
        await until(lambda: router.app.services.telemetry.joiner.samples, "the record to be written")
        (record,) = await records(router)
        assert record.decode is None
        assert router.counter("log_records", decode="missing") == 1


@pytest.mark.slow
async def test_pending_records_are_bounded_and_survive_the_end(start, tmp_path, monkeypatch):
    from eldr_router.telemetry import joiner

    monkeypatch.setattr(joiner, "_MAX_PENDING", 3)
    settings = {"log_dir": tmp_path / "log", "join_seconds": 1000.0}
    async with start("p0", "d0", settings=settings) as router:
        router["p0"].eldr = ONE
        router["d0"].activations = []
        for _ in range(8):
            await router.post()
        await until(lambda: router.app.services.telemetry.joiner.pending == 3, "the oldest to be given up")
        await until(lambda: router.app.services.telemetry.joiner.samples == 5, "the oldest to be written")
    from eldr.siglog import read

    assert len(list(read(tmp_path / "log"))) == 8


@pytest.mark.slow
async def test_the_sample_rate_is_honoured(start, tmp_path):
    async with start(
        "p0", "d0", settings={"log_dir": tmp_path / "log", "join_seconds": 0.0}, sample_rate=0.5
    ) as router:
        router["p0"].eldr = ONE
        for _ in range(40):
            await router.post()
        ids = {contract.base_id(seen.id) for seen in router["d0"].requests}
        expected = {name for name in ids if contract.is_sampled(name, 0.5)}
        assert 0 < len(expected) < 40
        await until(lambda: router.app.services.telemetry.joiner.samples >= len(expected), "the records")
        assert {record.request_id for record in await records(router)} == expected


@pytest.mark.slow
async def test_a_log_that_cannot_be_written_costs_no_request(start, tmp_path, monkeypatch, caplog):
    async with start("p0", "d0", settings={"log_dir": tmp_path / "log", "join_seconds": 0.0}) as router:
        router["p0"].eldr = ONE

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(router.app.services.telemetry.joiner._log, "append", full)
        assert (await router.post()).status_code == 200
        await until(lambda: "No space left" in caplog.text, "the failure to be logged")
        assert (await router.post()).status_code == 200
