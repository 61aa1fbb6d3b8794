from eldr import contract


def test_base_id_survives_attempts_and_engine_decoration() -> None:
    first, second = (
        contract.attempt_id(contract.request_base("0a1b2c3d", 255), attempt) for attempt in (0, 12)
    )
    assert first == "eldr-0a1b2c3d-ff-0"
    base = "eldr-0a1b2c3d-ff"
    for text in (
        first,
        second,
        f"cmpl-{first}",
        f"chatcmpl-{second}",
        f"cmpl-{first}-0-1a2b3c4d",
        f"0_cmpl-{first}-0",
    ):
        assert contract.base_id(text) == base


def test_base_id_of_a_foreign_id_is_the_id() -> None:
    assert contract.base_id("cmpl-abc") == "cmpl-abc"


def test_sampling_is_a_share_and_agrees_between_router_and_engine() -> None:
    ids = [contract.attempt_id(contract.request_base("0a1b2c3d", n), 0) for n in range(4000)]
    chosen = [contract.is_sampled(i, 0.25) for i in ids]
    assert 0.2 < sum(chosen) / len(ids) < 0.3
    assert chosen == [contract.is_sampled(f"cmpl-{i[:-1]}7-0-deadbeef", 0.25) for i in ids]
    assert all(contract.is_sampled(i, 1.0) for i in ids)
    assert not any(contract.is_sampled(i, 0.0) for i in ids)
