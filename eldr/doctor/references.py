"""Secrets, ConfigMaps and claims that pods need: are they there, with their keys? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eldr import contract
from eldr.doctor.facts import Facts, Finding, Object, Reference, Said, Skipped, Template, Unseen
from eldr.doctor.pods import UNBOUND
from eldr.doctor.templates import containers
from eldr.status.fields import inside, objects, text

_STUCK = frozenset({"ContainerConfig"})
_CLAIM = "PersistentVolumeClaim"
_UNBOUND = frozenset({"ClaimPending", UNBOUND})


def references(templates: Iterable[Template], own: str = "") -> list[Reference]:
    """Return what the pods of a deployment cannot start without, each with who needs it.

    Parameters
    ----------
    own : str
        Name of the deployment: its Secret of the admin ports is the operator's to make.
    """
    admin = ("Secret", contract.admin_secret_name(own))
    needed = [one for template in templates for one in _of_pod(template)]
    return [one for one in dict.fromkeys(needed) if (one.kind, one.name) != admin]


def look(facts: Facts) -> Said:
    """Say what is missing."""
    unseen: dict[str, None] = {}
    said: set[tuple[str, str, str]] = set()
    for wanted in references(facts.templates, facts.name):
        referred = facts.referred.get((wanted.kind, wanted.name))
        if isinstance(referred, Unseen):
            unseen[referred.why] = None
        elif (about := (wanted.kind, wanted.name, wanted.key if referred else "")) not in said:
            for finding in _judge(facts, wanted, referred):
                said.add(about)
                yield finding
    yield from map(Skipped, unseen)


def _judge(facts: Facts, wanted: Reference, referred: Object | None) -> Iterator[Finding]:
    about, where = f"{wanted.kind} {wanted.name}", f"in namespace {facts.namespace}"
    if referred is None:
        explains = _STUCK | _UNBOUND if wanted.kind == _CLAIM else _STUCK
        yield Finding(about, f"it does not exist {where}; {wanted.by} needs it", _create(wanted), explains)
    elif wanted.key and wanted.key not in referred.get("keys", ()):
        has = ", ".join(sorted(referred.get("keys", ()))) or "no key at all"
        remedy = f"add the key to the {wanted.kind}, or name another one"
        yield Finding(
            about, f"it has no key {wanted.key}, which {wanted.by} needs; it has {has}", remedy, _STUCK
        )
    elif wanted.kind == _CLAIM:
        yield from _claim(facts, wanted, referred)


def _claim(facts: Facts, wanted: Reference, claim: Object) -> Iterator[Finding]:
    phase = text(inside(claim, "status"), "phase")
    about = f"claim {wanted.name}"
    if phase == "Lost":
        yield Finding(about, "its volume is gone", "create a claim anew and restore its data")
    elif phase == "Pending" and not isinstance(facts.pods, Unseen) and facts.pods:
        storage = text(inside(claim, "spec"), "storageClassName") or "the default"
        remedy = f"see kubectl describe pvc {wanted.name}; install a provisioner for storage class {storage} if there is none"
        yield Finding(
            about,
            f"no volume is bound to it, so pods of {wanted.by} cannot start",
            remedy,
            _UNBOUND,
        )
    modes = inside(claim, "spec").get("accessModes") or ()
    users = sum(one.replicas for one in facts.templates if wanted.name in _claims(one.spec))
    if "ReadWriteOncePod" in modes and users > 1:
        remedy = "use a claim with ReadWriteMany or ReadOnlyMany"
        yield Finding(about, f"it allows one pod (ReadWriteOncePod), {users} need it", remedy)


def _create(wanted: Reference) -> str:
    match wanted.kind:
        case "Secret" if wanted.key in {"tls.crt", "tls.key"}:
            return f"kubectl create secret tls {wanted.name} --cert=FILE --key=FILE"
        case "Secret" if wanted.key:
            return f"kubectl create secret generic {wanted.name} --from-literal={wanted.key}=..."
        case "Secret":
            return f"create the Secret {wanted.name}, or remove what names it"
        case "ConfigMap":
            return f"create the ConfigMap {wanted.name}, or remove what names it"
        case _:
            return f"create the claim {wanted.name}, or correct its name in spec.model or podTemplate, or its storage class"


def _of_pod(template: Template) -> Iterator[Reference]:
    spec, role = template.spec, template.role
    for one in objects(spec, "imagePullSecrets"):
        if name := text(one, "name"):
            yield Reference("Secret", name, "", f"imagePullSecrets of {role}")
    for container in containers(spec):
        for variable in objects(container, "env"):
            by = f"variable {variable.get('name')} of {role}"
            source = inside(variable, "valueFrom")
            yield from _needed("Secret", inside(source, "secretKeyRef"), by)
            yield from _needed("ConfigMap", inside(source, "configMapKeyRef"), by)
        for one in objects(container, "envFrom"):
            yield from _needed("Secret", inside(one, "secretRef"), f"envFrom of {role}")
            yield from _needed("ConfigMap", inside(one, "configMapRef"), f"envFrom of {role}")
    for volume in objects(spec, "volumes"):
        yield from _of_volume(volume, f"volume {volume.get('name')} of {role}")
    for name in _claims(spec):
        yield Reference(_CLAIM, name, "", role)


def _of_volume(volume: Object, by: str) -> Iterator[Reference]:
    sources = [volume, *objects(inside(volume, "projected"), "sources")]
    for source in sources:
        secret = inside(source, "secret")
        named = text(secret, "secretName") or text(secret, "name")
        for kind, reference in (
            ("Secret", secret | {"name": named}),
            ("ConfigMap", inside(source, "configMap")),
        ):
            items = [one for one in objects(reference, "items") if text(one, "key")]
            for item in items:
                yield from _needed(kind, reference | {"key": item["key"]}, by)
            if not items:
                yield from _needed(kind, reference, by)


def _needed(kind: str, reference: Object, by: str) -> Iterator[Reference]:
    name = text(reference, "name")
    if name and reference.get("optional") is not True:
        yield Reference(kind, name, text(reference, "key") or "", by)


def _claims(spec: Object) -> list[str]:
    names = (text(inside(one, "persistentVolumeClaim"), "claimName") for one in objects(spec, "volumes"))
    return [name for name in names if name]
