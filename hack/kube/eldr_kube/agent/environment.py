"""A container's environment and arguments, as the kubelet makes them. Pure but for the lookup that is passed in."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from eldr_kube.agent.resources import resource_value
from eldr_kube.agent.status import HOST_ADDRESS

Object = dict[str, Any]
Lookup = Callable[[str, str], Awaitable[dict[str, str] | None]]
"""``await lookup("ConfigMap" | "Secret", name)`` returns decoded data, or None where it does not exist."""

_REFERENCE = re.compile(r"\$(\$|\([^)]*\))")
_NAME = re.compile(r"[ -<>-~]+")
_HOST_VARIABLES = ("LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MissingSourceError(Exception):
    """Something that a container needs does not exist (yet), or is not known to the agent."""


def base_environment(path: tuple[str, ...]) -> dict[str, str]:
    """Return what every container sees: nothing of the agent's own environment that could matter."""
    kept = {name: os.environ[name] for name in _HOST_VARIABLES if name in os.environ}
    # Not the user's home: a client library would find the user's own kubeconfig there.
    return {**kept, "PATH": ":".join([*path, _PATH]), "HOME": "/tmp"}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; ``$$`` is a dollar sign, an unknown name stays as it is.

    Examples
    --------
    >>> expand("$(A) $$(A) $(B) $A", {"A": "1"})
    '1 $(A) $(B) $A'
    """

    def value(found: re.Match[str]) -> str:
        if found.group(1) == "$":
            return "$"
        return variables.get(found.group(1)[1:-1], found.group(0))

    return _REFERENCE.sub(value, text)


def field_value(pod: Object, path: str, address: str) -> str:
    """Return what a ``fieldRef`` or a downward API item refers to; MissingSourceError if this agent does not know the field."""
    metadata, spec = pod["metadata"], pod["spec"]
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": HOST_ADDRESS,
        "status.hostIPs": HOST_ADDRESS,
        "metadata.labels": _lines(metadata.get("labels")),
        "metadata.annotations": _lines(metadata.get("annotations")),
    }
    if path in known:
        return str(known[path])
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((metadata.get(found.group(1)) or {}).get(found.group(2), ""))
    raise MissingSourceError(f"fieldRef {path!r} is not known to the node agent")


def _lines(values: dict[str, str] | None) -> str:
    return "\n".join(f'{key}="{value}"' for key, value in sorted((values or {}).items()))


async def container_env(pod: Object, container: Object, address: str, lookup: Lookup) -> dict[str, str]:
    """Return the variables that ``envFrom`` and ``env`` define; MissingSourceError if a source that is not optional does not exist."""
    variables: dict[str, str] = {}
    for source in container.get("envFrom", []):
        kind, key = ("ConfigMap", "configMapRef") if "configMapRef" in source else ("Secret", "secretRef")
        data = await _required(lookup, kind, source[key])
        named = {source.get("prefix", "") + name: value for name, value in (data or {}).items()}
        variables |= {name: value for name, value in named.items() if _NAME.fullmatch(name)}
    for item in container.get("env", []):
        if "valueFrom" not in item:
            variables[item["name"]] = expand(item.get("value", ""), variables)
            continue
        value = await _from_source(pod, container, item["valueFrom"], address, lookup)
        if value is not None:
            variables[item["name"]] = value
    return variables


async def _from_source(
    pod: Object, container: Object, source: Object, address: str, lookup: Lookup
) -> str | None:
    if reference := source.get("fieldRef"):
        return field_value(pod, reference["fieldPath"], address)
    if reference := source.get("resourceFieldRef"):
        return resource_value(container, reference)
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if reference := source.get(key):
            data = await _required(lookup, kind, reference)
            if data is not None and reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            raise MissingSourceError(f"{kind} {reference['name']!r} has no key {reference['key']!r}")
    raise MissingSourceError(f"valueFrom {', '.join(source)} is not known to the node agent")


async def _required(lookup: Lookup, kind: str, reference: Object) -> dict[str, str] | None:
    data = await lookup(kind, reference["name"])
    if data is None and not reference.get("optional"):
        raise MissingSourceError(f"{kind} {reference['name']!r} not found")
    return data


def arguments(container: Object, entrypoint: tuple[str, ...], variables: Mapping[str, str]) -> list[str]:
    """Return the command line: ``command`` or the image's entry point, then ``args``, expanded."""
    command = [expand(part, variables) for part in container.get("command") or []]
    return [*(command or entrypoint), *(expand(part, variables) for part in container.get("args") or [])]
