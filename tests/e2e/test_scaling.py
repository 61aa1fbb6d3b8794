"""Roles that are scaled down and up again under streams, while other things change: no stream may break, and no pod stay."""

from __future__ import annotations

import time
from itertools import cycle

import pytest

from eldr import contract
from tests.e2e.conftest import NAME, SPEED, System, usual
from tests.e2e.test_rollout import ARGS, Step, patch, settled, under_traffic
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(900)]

SPEC = usual(SPEED) | {"prefill": {"replicas": 3}}
ROLES = contract.ROLE_PREFILL, contract.ROLE_DECODE
TOKENS = 200
"""Of an answer: a stream takes seconds, so that some are under way whenever a pod ends."""
RATE = 4.0
"""Requests per second: one engine of each role can serve them."""


def scale(system: System, replicas: int) -> None:
    """Ask for pods of both roles as an autoscaler does."""
    for role in ROLES:
        system.kube.merge(contract.KIND_SCALER, f"{NAME}-{role}", {"spec": {"replicas": replicas}}, "scale")


def scaled(replicas: int) -> Step:
    """Scale both roles, until no other pods are left and all are ready."""

    def is_done(system: System) -> bool:
        status = system.get("eldr")["status"]
        return settled(system) and all(
            len(system.pods(role)) == status[role]["ready"] == replicas for role in ROLES
        )

    def step(system: System) -> None:
        scale(system, replicas)
        wait_for(lambda: is_done(system), f"{replicas} of each", 120, lambda: system.get("eldr")["status"])

    return step


def flapping(system: System) -> None:
    """Scale both roles to and fro, and wait for nothing in between."""
    for replicas, _ in zip(cycle((1, 3, 2)), range(9), strict=False):
        scale(system, replicas)
        time.sleep(1.5)  # some pods have begun to start or end, others not
    scaled(3)(system)


def rolled_and_scaled(key: str) -> Step:
    """Replace all engines, and scale both roles to one and back while they are replaced."""

    def step(system: System) -> None:
        args = [*ARGS, f"--kv-key={key}"]
        system.kube.merge(contract.KIND_DEPLOYMENT, NAME, {"spec": {"engine": {"args": args}}})
        for replicas in (1, 3):
            time.sleep(3)  # in the middle of it
            scale(system, replicas)
        scaled(3)(system)

    return step


async def test_both_roles_are_scaled_down_and_up_again_and_again(system: System):
    await under_traffic(system, *(scaled(replicas) for replicas in (1, 3) * 3), rate=RATE, tokens=TOKENS)


async def test_both_roles_are_scaled_while_pods_still_start_and_end(system: System):
    await under_traffic(system, flapping, flapping, rate=RATE, tokens=TOKENS)


async def test_both_roles_are_scaled_while_they_are_replaced(system: System):
    steps = rolled_and_scaled("a"), rolled_and_scaled("b"), patch({"engine": {"args": ARGS}})
    await under_traffic(system, *steps, rate=RATE, tokens=TOKENS)
