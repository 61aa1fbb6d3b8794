"""Which EldrDeployment a request goes to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from eldr import contract

Object = Mapping[str, Any]


class NoTargetError(Exception):
    """There is nothing to send a request to; the message says what to do."""


class Target(NamedTuple):
    """A deployment that serves.

    Attributes
    ----------
    url : str
        Of its Service, as clients in the cluster reach it.
    """

    namespace: str
    name: str
    model: str
    url: str

    def __str__(self) -> str:
        return f"{contract.KIND_DEPLOYMENT} {self.namespace}/{self.name}"


def choose(deployments: Sequence[Object], name: str, where: str) -> Target:
    """Return the deployment to ask: one that is Ready, else one that can serve.

    Parameters
    ----------
    deployments : sequence of mapping
        EldrDeployments.
    name : str
        The one that is meant; empty for any.
    where : str
        How messages call the place where they were looked for.

    Raises
    ------
    NoTargetError
        If there is none.
    """
    named = [one for one in deployments if not name or one["metadata"]["name"] == name]
    if not named:
        what = f"no {contract.KIND_DEPLOYMENT} {name}".rstrip()
        raise NoTargetError(
            f"there is {what} in {where}. Create one, wait until it is Ready, and try again; one that needs no accelerator: "
            "kubectl apply -f examples/simulator.yaml && kubectl wait eldr/qwen3 --for=condition=Ready --timeout=120s"
        )
    for condition in ("Ready", "Available"):
        for one in named:
            if _condition(one, condition).get("status") == "True":
                return _target(one)
    raise NoTargetError("; ".join(_why(one) for one in named))


def _target(one: Object) -> Target:
    metadata, status = one["metadata"], one["status"]
    return Target(metadata["namespace"], metadata["name"], str(status["model"]), str(status["url"]))


def _condition(one: Object, type_: str) -> Object:
    conditions: Iterable[Object] = one.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == type_), {})


def _why(one: Object) -> str:
    metadata, ready = one["metadata"], _condition(one, "Ready")
    where = f"{metadata['namespace']}/{metadata['name']}"
    if not ready:
        return f"{where} has no condition yet: does an operator serve its namespace? See the operator's log"
    command = f"kubectl describe eldr {metadata['name']} -n {metadata['namespace']}"
    return f"{where} cannot serve: {ready.get('reason')}: {ready.get('message')}. See: {command}"
