"""Images that cannot be pulled, containers that end, pods that no node takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eldr import contract
from eldr.doctor.facts import Facts, Finding, Object, Said, Skipped, Unseen
from eldr.status.fields import inside, integer, objects, text

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_CREATE = {"CreateContainerConfigError", "CreateContainerError"}
UNBOUND = "UnboundClaim"
"""Of a pod that waits for a claim: a finding about the claim itself explains it."""
CLAIM_REMEDY = "create the claim in this namespace, or correct its name in spec.model or podTemplate, or its storage class"
_FIELDS = {"engine": "engine.image", "router": "router.image", "eldr-plugin": "the operator's --set image"}


def images(facts: Facts) -> Said:
    """Say which images cannot be pulled."""
    if isinstance(facts.pods, Unseen):
        yield Skipped(facts.pods.why)
        return
    said: dict[str, Finding] = {}
    for pod in facts.pods:
        for container in _statuses(pod):
            waiting = inside(container, "state", "waiting")
            if (reason := text(waiting, "reason")) in _PULL:
                image, name = text(container, "image") or "?", text(container, "name") or "?"
                # of ImagePullBackOff the message is the pause alone; the events have the cause
                why = text(waiting, "message") or ""
                problem = f"container {name} of pod {_name(pod)} cannot pull it ({reason}){': ' if why else ''}{why}"
                finding = Finding(
                    f"image {image}",
                    problem,
                    _remedy(name, why, _name(pod), has_secret=_has_secret(pod)),
                    frozenset({"ImagePull"}),
                )
                said.setdefault(image, finding)
    yield from said.values()


def containers(facts: Facts) -> Said:
    """Say which containers end or cannot be made, and which pods no node takes."""
    if isinstance(facts.pods, Unseen):
        yield Skipped(facts.pods.why)
        return
    for pod in facts.pods:
        if not _has_failed(pod):
            yield from _unscheduled(pod)
            for container in _statuses(pod):
                yield from _stuck(pod, container)
    yield from _failed(facts, [pod for pod in facts.pods if _has_failed(pod)])


def _has_failed(pod: Object) -> bool:
    return text(inside(pod, "status"), "phase") == "Failed"


def _failed(facts: Facts, pods: Sequence[Object]) -> Iterator[Finding]:
    """Say which pods Kubernetes failed, of roles that lack pods: where others took their place, they are history."""
    by_role: dict[str, list[Object]] = {}
    for pod in pods:
        by_role.setdefault(text(inside(pod, "metadata", "labels"), contract.LABEL_ROLE) or "", []).append(pod)
    for role, failed in by_role.items():
        state = inside(facts.deployment, "status", role)
        if state and state.get("ready") == state.get("desired"):
            continue
        first = min(failed, key=_name)
        reason = text(inside(first, "status"), "reason") or "no reason given"
        said = text(inside(first, "status"), "message") or "no message given"
        count = f"{len(failed)} pod{'s' * (len(failed) != 1)} of {role or 'no role'} failed"
        yield Finding(
            f"pod {_name(first)}",
            f"{count}, this one: {reason}: {said}",
            f"free what it lacks on its node, or correct resources; more in kubectl describe pod {_name(first)}",
            frozenset({"PodsFailed"}),
        )


def _stuck(pod: Object, container: Object) -> Iterator[Finding]:
    name, about = text(container, "name") or "?", f"pod {_name(pod)}"
    waiting = inside(container, "state", "waiting")
    reason = text(waiting, "reason") or ""
    ended = inside(container, "lastState", "terminated") or inside(container, "state", "terminated")
    logs = f"kubectl logs {_name(pod)} -c {name} --previous"
    if reason in _CREATE:
        said = text(waiting, "message") or reason
        yield Finding(
            about,
            f"container {name} cannot be made: {said}",
            "create what it names, or correct the spec",
            frozenset({"ContainerConfig"}),
        )
    elif text(ended, "reason") == "OOMKilled":
        remedy = f"raise the memory limit of {name} (resources), or lower --max-model-len and --max-num-seqs"
        yield Finding(
            about,
            f"container {name} ran out of memory, {_restarts(container)}",
            remedy,
            frozenset({"CrashLoop"}),
        )
    elif reason == "CrashLoopBackOff" or _is_just_back(container):
        said = (text(ended, "message") or "").strip()
        code = integer(ended, "exitCode")
        problem = f"container {name} ends again and again (exit code {code}), {_restarts(container)}"
        remedy = f"as it says; more in {logs}" if said else f"read {logs}"
        yield Finding(
            about,
            f"{problem}{': ' if said else ''}{said}",
            remedy,
            frozenset({"CrashLoop", "EngineRefused"}),
        )


def _is_just_back(container: Object) -> bool:
    """Whether it ended again and again, and runs for a moment: not ready, after an end that was none of its own will."""
    ended = inside(container, "lastState", "terminated")
    often = (integer(container, "restartCount") or 0) > 1
    return often and not container.get("ready") and bool(integer(ended, "exitCode"))


def _unscheduled(pod: Object) -> Iterator[Finding]:
    for condition in objects(inside(pod, "status"), "conditions"):
        if (
            condition.get("type") == "PodScheduled"
            and condition.get("status") == "False"
            and condition.get("reason") == "Unschedulable"
        ):
            said = text(condition, "message") or "no node takes it"
            remedy = "add nodes, free devices, or correct nodeSelector, tolerations and resources"
            cause, reason = "InsufficientCapacity", ""
            if "persistentvolumeclaim" in said.lower():
                remedy, cause, reason = CLAIM_REMEDY, "ClaimPending", UNBOUND
            yield Finding(f"pod {_name(pod)}", said, remedy, frozenset({cause}), reason)


def _remedy(container: str, why: str, pod: str, *, has_secret: bool) -> str:
    said = why.lower()
    field = _FIELDS.get(container, f"the image of {container}")
    if any(word in said for word in ("unauthorized", "denied", "forbidden", "authentication required")):
        if has_secret:
            return (
                "renew the pull Secret in podTemplate.spec.imagePullSecrets: the registry does not accept it"
            )
        return "create a pull Secret and name it in podTemplate.spec.imagePullSecrets of the role"
    if "not found" in said or "manifest unknown" in said:
        return f"the registry has no such image: correct {field}"
    if "no such host" in said:
        return f"no registry has that name: correct {field}, or the nodes' DNS"
    return f"correct {field}; the cause is among the events: kubectl describe pod {pod}"


def _has_secret(pod: Object) -> bool:
    return any(objects(inside(pod, "spec"), "imagePullSecrets"))


def _restarts(container: Object) -> str:
    return f"{integer(container, 'restartCount') or 0} restarts"


def _name(pod: Object) -> str:
    return text(inside(pod, "metadata"), "name") or "?"


def _statuses(pod: Object) -> Iterator[Object]:
    status = inside(pod, "status")
    yield from objects(status, "initContainerStatuses")
    yield from objects(status, "containerStatuses")
