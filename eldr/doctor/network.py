"""NetworkPolicies: do they keep clients, routers and engines apart? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from eldr import contract
from eldr.doctor import peers
from eldr.doctor.facts import Facts, Finding, Object, Said, Skipped, Template, Unseen
from eldr.doctor.templates import engine, variables
from eldr.status.fields import inside, text

_KV = 5600
_HTTPS = 443
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def look(facts: Facts) -> Said:
    """Say what NetworkPolicies keep out that must come in."""
    if isinstance(facts.policies, Unseen):
        yield Skipped(facts.policies.why)
        return
    for template in facts.templates:
        yield from _clients(facts.policies, template)
        yield from _each_other(facts, facts.policies, template)
        yield from _hub(facts, facts.policies, template)


def _clients(policies: Iterable[Object], template: Template) -> Iterator[Finding]:
    if template.labels.get(contract.LABEL_ROUTER) != "true":
        return
    limiting = peers.selecting(policies, template.labels, "Ingress")
    if limiting and not peers.may_pass(limiting, "Ingress", contract.PORT_ROUTER, peers.client):
        problem = f"none of them lets clients reach routers at port {contract.PORT_ROUTER}"
        yield _finding(limiting, problem)


def _each_other(facts: Facts, policies: Iterable[Object], template: Template) -> Iterator[Finding]:
    ingress = peers.selecting(policies, template.labels, "Ingress")
    for port, what in _ports(facts, template):
        froms = [one for one in facts.templates if _asks(one, port)]
        for other in froms:
            if ingress and not peers.may_pass(
                ingress, "Ingress", port, peers.pod(other.labels, facts.namespace)
            ):
                yield _finding(ingress, f"none of them lets {other.role} pods reach {what}, port {port}")
            egress = peers.selecting(policies, other.labels, "Egress")
            if egress and not peers.may_pass(
                egress, "Egress", port, peers.pod(template.labels, facts.namespace)
            ):
                yield _finding(
                    egress, f"none of them lets {other.role} pods out to {what}, port {port}", "egress"
                )


def _ports(facts: Facts, template: Template) -> Iterator[tuple[int, str]]:
    if engine(template):
        yield contract.PORT_ENGINE, f"{template.role} engines"
    if template.role == contract.ROLE_PREFILL and _is_vllm(facts):
        yield _KV, "prefill engines' KV"
    if template.labels.get(contract.LABEL_ROUTER) == "true":
        yield contract.PORT_ADMIN, "the other routers"


def _asks(template: Template, port: int) -> bool:
    if port == _KV:
        return template.role == contract.ROLE_DECODE
    return template.labels.get(contract.LABEL_ROUTER) == "true"


def _hub(facts: Facts, policies: Iterable[Object], template: Template) -> Iterator[Finding]:
    uri = text(inside(facts.deployment, "spec", "model"), "uri") or ""
    container = engine(template)
    is_local = uri.startswith("/") or "://" in uri or not _is_vllm(facts)
    if is_local or not container or variables(container).keys() & set(_OFFLINE):
        return
    limiting = peers.selecting(policies, template.labels, "Egress")
    if limiting and not peers.may_pass(limiting, "Egress", _HTTPS, peers.outside):
        problem = f"none of them lets {template.role} pods out to the hub, port {_HTTPS}, for {uri}"
        yield _finding(limiting, problem, "egress")


def _is_vllm(facts: Facts) -> bool:
    return (text(inside(facts.deployment, "spec", "engine"), "type") or "vLLM") == "vLLM"


def _finding(policies: Iterable[Mapping[str, object]], problem: str, way: str = "ingress") -> Finding:
    names = ", ".join(sorted(str(inside(one, "metadata").get("name")) for one in policies))
    remedy = f"add a NetworkPolicy with that {way}"
    if way == "ingress":
        remedy = f"set networkPolicy to Enabled, or {remedy}"
    return Finding(f"NetworkPolicy {names}", problem, remedy)
