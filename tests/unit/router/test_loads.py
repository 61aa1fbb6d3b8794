"""How old an engine's report may get before a router asks for another."""

import pytest

from eldr_router.engines import load_poller
from eldr_router.engines.load import Load
from eldr_router.engines.load_poller import LoadPoller
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec


@pytest.mark.parametrize(("routers", "oldest"), [(1, 0.25), (8, 0.25), (100, 0.55)])
def test_under_load_reports_are_asked_for_in_time(routers, oldest):
    """Answers take time, too: what is asked for after 0.2 s is there after a quarter of a second."""
    now, ages = [100.0], []
    registry = Registry(lambda: now[0])
    registry.replace("decode", [EndpointSpec("decode", "d0", "10.0.0.1", 8000, 0)])
    registry.set_peers([(f"10.0.1.{number}", 1) for number in range(routers - 1)])
    (engine,) = registry.endpoints("decode")
    engine.report(Load(0, 8), now[0])
    asking = LoadPoller(registry, None, lambda: now[0])

    def ask(asked):
        ages.append(now[0] - asked.reported_at)
        asked.report(Load(0, 8), now[0])

    asking.ask = ask
    for _ in range(100):
        now[0] += load_poller._TICK
        registry.admit(8).release()  # there is traffic
        asking._turn()
    assert 0 < max(ages) <= oldest
