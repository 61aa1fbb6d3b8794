"""Can engines get the model: a path that is mounted, a hub that answers, a token that may? Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from eldr.doctor.facts import Facts, Finding, Said, Skipped, Template, Unseen
from eldr.doctor.templates import engine, variables
from eldr.status.fields import inside, objects, text

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_CAUSES = frozenset({"CrashLoop", "PodsNotReady"})


class _Sign(NamedTuple):
    """What a line of an engine's log says."""

    pattern: re.Pattern[str]
    problem: str
    remedy: str


def _sign(pattern: str, problem: str, remedy: str) -> _Sign:
    return _Sign(re.compile(pattern), problem, remedy)


_ASK = (
    "kubectl create secret generic hugging-face --from-literal=token=..., of a token that may read it, and "
    "set model.tokenSecret to {name: hugging-face}"
)
_ACCEPT_TERMS = "accept the model's terms with the account of HF_TOKEN, or use a token that may read it"
_SIGNS = (
    _sign(
        r"GatedRepoError|gated repo|\b403\b.*(?:huggingface|Client Error)|403 Client Error|AccessDenied",
        "the hub does not let it read {uri} (403)",
        "{access}",
    ),
    _sign(
        r"\b401\b.*(?:huggingface|Client Error|Unauthorized)|401 Client Error|Invalid user token|Invalid credentials",
        "the hub does not accept its token, or wants one, for {uri} (401)",
        "{access}",
    ),
    _sign(
        r"RepositoryNotFoundError|404 Client Error|RevisionNotFoundError|NoSuchKey|NoSuchBucket"
        r"|not a valid model identifier|EntryNotFoundError",
        "there is no {uri} (404), or its token may not see it",
        "correct model.uri; it cannot be changed, so create the deployment anew. Where the model is private, {access}",
    ),
    _sign(
        r"(?:huggingface\.co|hf\.co).*(?:Max retries exceeded|Name or service not known|Failed to resolve|timed out)"
        r"|(?:Max retries exceeded|Failed to resolve).*(?:huggingface\.co|hf\.co)|LocalEntryNotFoundError",
        "it does not reach the hub",
        "let pods reach the hub (egress, proxy, DNS), or mount the model and name its path",
    ),
    _sign(
        r"FileNotFoundError.*config\.json|No such file or directory.*(?:safetensors|config\.json)",
        "it finds no model at {uri}",
        "put the model there, or name the claim that holds it in model.source",
    ),
)


def look(facts: Facts) -> Said:
    """Say why engines cannot read the model."""
    spec = inside(facts.deployment, "spec", "model")
    uri = text(spec, "uri") or ""
    if uri.startswith("/") and not inside(spec, "source"):  # with a source it is a path on its claim
        yield from _path(facts, uri)
    unseen: dict[str, None] = {}
    said: dict[str, Finding] = {}
    for pod, log in facts.logs.items():
        if isinstance(log, Unseen):
            unseen[log.why] = None
        elif sign := _of_log(log):
            access = _ACCEPT_TERMS if _has_token(facts) else _ASK
            problem = f"{sign.problem.format(uri=uri)}; its log says: {_line(log, sign)}"
            remedy = sign.remedy.format(access=access)
            said.setdefault(sign.problem, Finding(f"engine of pod {pod}", problem, remedy, _CAUSES))
    yield from said.values()
    yield from map(Skipped, unseen)


def _path(facts: Facts, uri: str) -> Iterator[Finding]:
    """Say where no volume holds a path; an image may, so only of roles whose engines are not ready."""
    for template in facts.templates:
        container = engine(template)
        if not container or _is_ready(facts, template):
            continue
        mounts = [text(one, "mountPath") for one in objects(container, "volumeMounts")]
        if not any(path and PurePosixPath(uri).is_relative_to(path) for path in mounts):
            problem = f"no volume of {template.role} is mounted at {uri} or above it"
            remedy = "name the claim that holds it in model.source, and its path there in model.uri; if the image holds it, leave it"
            yield Finding("model.uri", problem, remedy)


def _is_ready(facts: Facts, template: Template) -> bool:
    role = inside(facts.deployment, "status", template.role)
    return role.get("ready") == role.get("desired") is not None


def _of_log(log: str) -> _Sign | None:
    return next((sign for sign in _SIGNS if sign.pattern.search(log)), None)


def _line(log: str, sign: _Sign) -> str:
    """Return the last line that tells it; what a terminal obeys is left to who shows it."""
    lines = [line.strip() for line in log.splitlines() if sign.pattern.search(line)]
    return lines[-1][:200] if lines else ""


def _has_token(facts: Facts) -> bool:
    return any(name in variables(engine(one)) for one in facts.templates for name in _TOKENS)
