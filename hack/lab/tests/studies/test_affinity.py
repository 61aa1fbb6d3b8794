"""The rule that the router has finds nearly as many cached prefixes as one that knows every cache."""

from dataclasses import replace

import pytest

from eldr_lab.studies import affinity


@pytest.mark.parametrize("routers", [1, 4])
@pytest.mark.parametrize("world", [1, 6, 7], ids=["one prompt", "busy", "documents"])
def test_nearly_as_much_is_found_as_by_an_oracle(world, routers):
    world = replace(affinity.WORLDS[world], routers=routers, sessions=120)
    turns = affinity.workload(world, 1)
    first, present = (
        affinity.simulate(world, turns, rule(world, 1))
        for rule in (affinity.first_rule, affinity.present_rule)
    )
    best = affinity.best(world, turns, 1)
    assert present.hits >= 0.9 * best.hits
    assert present.hits > 0.98 * first.hits
    assert present.imbalance < 2
    if (
        world.prompts
    ):  # which is where the first rule fails: it crowds one engine, or none finds its last turn
        assert first.hits < 0.9 * best.hits or first.imbalance > 5
        assert present.stayed > 0.95
