"""Where vLLM finds a model's weights, and what it keeps on a claim: arguments, variables and volumes of its pods. Pure.

The claim of ``spec.model.cache`` is shared by all pods. The hub's cache takes locks, so all use the same. vLLM writes the index of its
compiled graphs in place, and ends at its start where it finds half of one: so each decode engine has a folder of its own, by the name that
its successor has too. Prefill pods have no such name, and compile anew. AITER's kernels stay in the pod as well: a build that was killed
leaves its lock.

References
----------
.. [1] vLLM 0.33, ``vllm/compilation/backends.py``, ``CompilerManager.save_to_file``; ``vllm/envs.py``: ``VLLM_CACHE_ROOT`` is no part of
   the key of compiled graphs.
"""

from __future__ import annotations

from typing import Any, Final

from eldr import contract
from eldr_operator.models import ModelSpec

Object = dict[str, Any]

CACHE_DIR: Final = "/eldr/models"
CACHE_VOLUME: Final = "model-cache"
SOURCE_DIR: Final = "/eldr/model"
SOURCE_VOLUME: Final = "model-source"
REVISION: Final = "--revision"
TOKEN: Final = "HF_TOKEN"  # noqa: S105 - a variable's name
HUB_CACHES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
"""Variables that say where the hub's cache is."""


def location(model: ModelSpec) -> str:
    """Return what ``vllm serve`` takes: a name on the hub, an address, or a path in the container."""
    if model.source is None:
        return model.uri
    path = model.uri.strip("/")
    return SOURCE_DIR if path == "." else f"{SOURCE_DIR}/{path}"


def identity(model: ModelSpec) -> Any:
    """Return what distinguishes weights, but for the revision: a path means another model on another claim."""
    return model.uri if model.source is None else [model.uri, model.source.claim_name]


def arguments(model: ModelSpec) -> list[str]:
    """Return the arguments that choose the weights beside their location."""
    return [] if model.revision is None else [f"{REVISION}={model.revision}"]


def environment(model: ModelSpec, role: str) -> list[Object]:
    """Return the variables of engines, which win over the operator's other ones."""
    values: dict[str, str] = {}
    if model.cache is not None:
        values["HF_HOME"] = hub_home()
        if role == contract.ROLE_DECODE:
            compiled = f"{CACHE_DIR}/compiled/$({contract.ENV_POD_NAME})"
            values |= {"VLLM_CACHE_ROOT": f"{compiled}/vllm", "TRITON_CACHE_DIR": f"{compiled}/triton"}
    return [*({"name": name, "value": value} for name, value in values.items()), *token(model)]


def hub_home() -> str:
    """Return the hub's folder on the claim."""
    return f"{CACHE_DIR}/huggingface"


def token(model: ModelSpec) -> list[Object]:
    """Return the variable with the hub's token, if the spec names a Secret."""
    if model.token_secret is None:
        return []
    reference = {"name": model.token_secret.name, "key": model.token_secret.key}
    return [{"name": TOKEN, "valueFrom": {"secretKeyRef": reference}}]


def volumes(model: ModelSpec) -> list[Object]:
    """Return the volumes of the claims."""
    made = []
    if model.cache is not None:
        made.append(_volume(CACHE_VOLUME, model.cache.claim_name))
    if model.source is not None:
        made.append(_volume(SOURCE_VOLUME, model.source.claim_name, readOnly=True))
    return made


def _volume(name: str, claim: str, **more: bool) -> Object:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, **more}}


def mounts(model: ModelSpec) -> list[Object]:
    """Return where the engine's container sees the claims."""
    made: list[Object] = []
    if model.cache is not None:
        made.append({"name": CACHE_VOLUME, "mountPath": CACHE_DIR})
    if model.source is not None:
        made.append({"name": SOURCE_VOLUME, "mountPath": SOURCE_DIR, "readOnly": True})
    return made
