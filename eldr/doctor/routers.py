"""Routers: does the Service lead to them, and do they answer what a client asks? Pure."""

from __future__ import annotations

from eldr import contract
from eldr.doctor.facts import Answer, Facts, Finding, Said, Skipped, Unseen
from eldr.status.fields import inside, objects

_CAUSES = frozenset({"NoRouter"})
_FINE = {200, 401}
"""401: engines want an API key, and only they could say so."""


def look(facts: Facts) -> Said:
    """Say which routers a client does not reach."""
    yield from _service(facts)
    if isinstance(facts.routers, Unseen):
        yield Skipped(facts.routers.why)
        return
    for answer in facts.routers:
        if answer.status not in _FINE:
            yield _finding(answer)


def _service(facts: Facts) -> Said:
    if isinstance(facts.slices, Unseen):
        yield Skipped(facts.slices.why)
        return
    about = f"Service {facts.name}"
    endpoints = [one for found in facts.slices for one in objects(found, "endpoints")]
    if not facts.slices:
        problem = "it has no endpoints: no pod has the labels of a router, or there is no such Service"
        yield Finding(about, problem, "see the role's condition; is the operator running?", _CAUSES)
    elif not any(inside(one, "conditions").get("ready") for one in endpoints):
        problem = f"none of its {len(endpoints)} routers is ready, so clients get no connection"
        yield Finding(about, problem, "see what keeps prefill pods and routers from being ready", _CAUSES)


def _finding(answer: Answer) -> Finding:
    about = f"router of pod {answer.pod}"
    if answer.status is None:
        remedy = (
            f"does the pod's router run, and may the API server reach port {contract.PORT_ROUTER}? "
            "NetworkPolicies and firewalls of the nodes decide; clients may still get through"
        )
        return Finding(about, f"it does not answer: {answer.said}", remedy)
    problem = f"it answers GET /v1/models with {answer.status}: {answer.said}"
    if answer.status == 503:
        return Finding(about, problem, "no engine is there for it: see prefill and decode pods")
    return Finding(about, problem, f"read kubectl logs {answer.pod} -c {contract.CONTAINER_ROUTER}")
