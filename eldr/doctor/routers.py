"""Routers: does the Service lead to them, and do they answer what a client asks? Pure."""

from __future__ import annotations

from eldr import contract
from eldr.doctor.facts import OPERATOR_REMEDY, Answer, Facts, Finding, Object, Said, Skipped, Unseen
from eldr.doctor.peers import matches
from eldr.status.fields import inside, objects

_CAUSES = frozenset({"NoRouter"})
_FINE = {200, 401}
"""401: the router wants an API key, or engines do, and only they could say so."""


def look(facts: Facts) -> Said:
    """Say which routers a client does not reach."""
    yield from _service(facts)
    if isinstance(facts.routers, Unseen):
        yield Skipped(facts.routers.why)
        return
    pods = () if isinstance(facts.pods, Unseen) else facts.pods
    ready = {one["metadata"]["name"] for one in pods if _is_ready(one)}
    for answer in facts.routers:
        if answer.status not in _FINE:
            # of a pod that is not ready another check says why
            yield _finding(answer)._replace(is_symptom=bool(pods) and answer.pod not in ready)


def _service(facts: Facts) -> Said:
    about = f"Service {facts.name}"
    if facts.service is None:
        yield Finding(about, "it does not exist, and clients connect to it", OPERATOR_REMEDY, _CAUSES)
    elif isinstance(facts.service, Unseen):
        yield Skipped(facts.service.why)
    elif isinstance(facts.pods, Unseen):
        yield Skipped(facts.pods.why)
    else:
        selector = {"matchLabels": inside(facts.service, "spec", "selector")}
        behind = [
            one
            for one in facts.pods
            if matches(selector, inside(one, "metadata", "labels"))
            and inside(one, "status").get("phase") not in contract.ENDED_PHASES
        ]
        if not any(map(_is_ready, behind)):
            problem = f"none of the {len(behind)} pods behind it is ready, so clients get no connection"
            remedy = "see what keeps prefill pods and routers from being ready"
            yield Finding(about, problem, remedy, _CAUSES, is_symptom=True)


def _is_ready(pod: Object) -> bool:
    conditions = objects(inside(pod, "status"), "conditions")
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _finding(answer: Answer) -> Finding:
    about = f"router of pod {answer.pod}"
    if answer.status is None:
        remedy = (
            f"check that the pod's router runs, and that NetworkPolicies and firewalls of the nodes let the API server reach port {contract.PORT_ROUTER}; "
            "clients can still get through"
        )
        return Finding(about, f"it does not answer: {answer.said}", remedy)
    problem = f"it answers GET /v1/models with {answer.status}: {answer.said}"
    if answer.status == 503:
        return Finding(about, problem, "no engine is there for it: see prefill and decode pods")
    return Finding(about, problem, f"read kubectl logs {answer.pod} -c {contract.CONTAINER_ROUTER}")
