"""Arguments and variables that contradict the fields of ``spec.model``. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.validation import names
from eldr_operator.validation.templates import container_patches
from eldr_operator.workloads import downloads, weights
from eldr_operator.workloads.options import options

_REVISION = "write it as spec.model.revision, by which weights are downloaded and engines compared"
_FOLDER = "remove it: the claim of spec.model.cache is where weights are kept"
_TOKEN = "remove it: the token is the one of spec.model.tokenSecret"  # noqa: S105 - no secret


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the contradictions, wherever they stand; only vLLM loads a model."""
    if cr.spec.engine.type != "vLLM":
        return []
    spec = cr.spec
    return [
        *_of_arguments(cr, spec.engine.args, "spec.engine.args"),
        *_of_arguments(cr, spec.prefill.args, "spec.prefill.args"),
        *_of_arguments(cr, spec.decode.args, "spec.decode.args"),
        *_of_variables(cr, spec.engine.env, "spec.engine.env"),
        *_of_variables(cr, spec.prefill.env, "spec.prefill.env"),
        *_of_variables(cr, spec.decode.env, "spec.decode.env"),
        *_of_template(cr, spec.prefill.pod_template, "spec.prefill.podTemplate"),
        *_of_template(cr, spec.decode.pod_template, "spec.decode.podTemplate"),
    ]


def _of_arguments(cr: EldrDeployment, args: Sequence[str], field: str) -> Iterator[Problem]:
    model = cr.spec.model
    refused: dict[str, str] = {}
    if model.revision is not None or downloads.is_wanted(cr):
        refused[weights.REVISION] = _REVISION
    if model.cache is not None:
        refused["--download-dir"] = _FOLDER
    for option in options(args):
        for name, remedy in refused.items():
            # shorter beginnings are ambiguous, and vLLM takes none of these
            if option.may_be((name,)) and len(option.name) > len("--re"):
                yield Problem("InvalidArgument", f"{field}[{option.index}]", option.shown, remedy)


def _of_variables(cr: EldrDeployment, variables: Any, field: str) -> Iterator[Problem]:
    refused = _refused_variables(cr)
    for index, name, _ in names.named(variables):
        if name in refused:
            yield Problem("InvalidVariable", f"{field}[{index}]", name, refused[name])


def _of_template(cr: EldrDeployment, patch: dict[str, Any], field: str) -> Iterator[Problem]:
    for name, where, container in container_patches(patch, field):
        if name == contract.CONTAINER_ENGINE:
            yield from _of_variables(cr, container.get("env"), f"{where}.env")


def _refused_variables(cr: EldrDeployment) -> Mapping[str, str]:
    refused: dict[str, str] = {}
    if cr.spec.model.cache is not None:
        refused |= dict.fromkeys(weights.HUB_CACHES, _FOLDER)
    if cr.spec.model.token_secret is not None:
        refused[weights.TOKEN] = _TOKEN
    return refused
