"""What two engines must have in common to exchange KV, as a key in a label of their pods. Pure.

Routers let no KV move between engines with different keys (:mod:`eldr_router.engines.pairing`). Parallelism and the size of blocks may
differ: engines agree on them themselves.

References
----------
.. [1] vLLM 0.32, ``compute_nixl_compatibility_hash``: the factors by which engines refuse each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.conditions import condition_of, has_ended
from eldr_operator.models import EldrDeployment, RoleSpec
from eldr_operator.workloads import weights
from eldr_operator.workloads.drafts import drafts
from eldr_operator.workloads.options import as_json, options

Object = dict[str, Any]

_OPTIONS = (
    ("--revision",),
    ("--dtype",),
    ("--quantization", "-q"),
    ("--hf-overrides",),
    ("--hf-config-path",),
    ("--kv-cache-dtype",),
    ("--kv-cache-dtype-skip-layers",),
    ("--mamba-ssm-cache-dtype",),
    ("--attention-config", "-ac"),
    ("--kv-key",),  # of simulated engines
)
_BACKEND = ("--attention-backend",)
"""Short for a key of ``--attention-config``."""
_FLAG = "--disable-hybrid-kv-cache-manager"
_FLAGS = {_FLAG: "true", f"--no-{_FLAG[2:]}": ""}
_VERBATIM = {"--revision", "--hf-config-path"}
_VARIABLES = {
    *("VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_MHA", "VLLM_ROCM_USE_AITER_MLA"),
    *("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "VLLM_MLA_DISABLE", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"),
}
"""These choose the attention backend, and how it lays out its cache: by the latter vLLM's own hash would let unlike engines pair."""
_DEFAULTS: tuple[Any, ...] = ("", "auto", {}, None)
_ALIASES = {"half": "float16", "float": "float32", "fp8": "fp8_e4m3"}
_CHARACTERS = 10


def labelled(cr: EldrDeployment, spec: RoleSpec, template: Object) -> Object:
    """Return a pod template of engines with the label of their key."""
    metadata = template["metadata"]
    labels = {**metadata["labels"], contract.LABEL_KV: _key(cr, spec, template)}
    return {**template, "metadata": {**metadata, "labels": labels}}


def unpaired(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ready decode engines to which no ready prefill engine may hand KV over, by pod name; without a key all may."""
    ready: dict[str, dict[str, str]] = {contract.ROLE_PREFILL: {}, contract.ROLE_DECODE: {}}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if (
            condition_of(pod, "Ready").get("status") == "True"
            and not pod["metadata"].get("deletionTimestamp")
            and not has_ended(pod)
            and labels.get(contract.LABEL_ROLE) in ready
        ):
            ready[labels[contract.LABEL_ROLE]][pod["metadata"]["name"]] = labels.get(contract.LABEL_KV, "")
    sources = {*ready[contract.ROLE_PREFILL].values()}
    if not sources or "" in sources:  # without any the condition Available says so
        return []
    return sorted(name for name, key in ready[contract.ROLE_DECODE].items() if key and key not in sources)


def mixed_images(pods: Iterable[Mapping[str, Any]]) -> str:
    """Return which engines with one key run different images, as after a tag was moved; empty if none do, or nodes do not tell."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        key = (metadata.get("labels") or {}).get(contract.LABEL_KV)
        for one in status.get("containerStatuses") or ():
            # others are names of images that a node has not pulled
            _, pulled, digest = (one.get("imageID") or "").partition("@sha256:")
            if (
                key
                and pulled
                and one["name"] == contract.CONTAINER_ENGINE
                and "deletionTimestamp" not in metadata
                and not has_ended(pod)
            ):
                by_key.setdefault(key, {}).setdefault(digest, []).append(metadata["name"])
    mixed = (by_digest for by_digest in by_key.values() if len(by_digest) > 1)
    return "; ".join(
        f"sha256:{digest[:12]} in {', '.join(sorted(names))}"
        for by_digest in mixed
        for digest, names in sorted(by_digest.items())
    )


def _key(cr: EldrDeployment, spec: RoleSpec, template: Mapping[str, Any]) -> str:
    model = cr.spec.model
    args = (*weights.arguments(model), *cr.spec.engine.args, *spec.args)
    containers = template["spec"]["containers"]
    engine: Object = next((each for each in containers if each["name"] == contract.CONTAINER_ENGINE), {})
    variables = {
        each["name"]: each.get("value") for each in engine.get("env") or () if each["name"] in _VARIABLES
    }
    drafting = asked.layers if (asked := drafts(("", args))).have_kv else {}
    factors = (engine.get("image"), weights.identity(model), _chosen(args), variables, drafting)
    return meta.digest(factors)[:_CHARACTERS]


def _chosen(args: Sequence[str]) -> Object:
    """Return what the arguments set of what matters, the last one of a name; defaults do not count."""
    chosen: Object = {}
    for option in options(args):
        for flag, value in _FLAGS.items():
            if option.may_be([flag]):
                chosen[_FLAG] = value
        names, key = next((each for each in _OPTIONS if option.may_be(each)), None), option.key
        if option.may_be(_BACKEND):
            names, key = ("--attention-config",), "backend"
        if names is None:
            continue
        value, known = as_json(option.value), chosen.get(names[0])
        if names[0] not in _VERBATIM:
            value = _plain({key: value} if key else value)
        chosen[names[0]] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    return {name: value for name, value in chosen.items() if value not in _DEFAULTS}


def _plain(value: Any) -> Any:
    """Return a value without what does not matter: case, other names for the same, defaults."""
    if isinstance(value, dict):
        made = {key: _plain(one) for key, one in value.items()}
        return {key: one for key, one in made.items() if one not in _DEFAULTS}
    if isinstance(value, str):
        return _ALIASES.get(value.lower(), value.lower())
    return value
