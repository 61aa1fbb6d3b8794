"""Speculative decoding among the arguments for vLLM: with which methods counting is exact, and what both roles must share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.validation.arguments import Rule, as_json, options

_CONFIG = Rule(("--speculative-config", "-sc"), "")
_FIELDS: Mapping[str, Rule] = {
    "method": Rule(("--spec-method",), ""),
    "model": Rule(("--spec-model",), ""),
    "num_speculative_tokens": Rule(("--spec-tokens",), ""),
}

_NO_KV = {"num_speculative_tokens"}
"""Fields that change no layer's KV, and that NIXL's handshake leaves out (``_get_speculative_compatibility_factors``)."""


class _Asked(NamedTuple):
    """What a role's arguments ask for, and where they do so last."""

    config: dict[str, Any]
    field: str
    shown: str


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return what is wrong with the speculative decoding of both roles; only vLLM's arguments are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    engine = ("spec.engine.args", cr.spec.engine.args)
    prefill = _asked(engine, ("spec.prefill.args", cr.spec.prefill.args))
    decode = _asked(engine, ("spec.decode.args", cr.spec.decode.args))
    found = {
        asked.field: Problem("InvalidArgument", asked.field, asked.shown, remedy)
        for asked in (prefill, decode)
        if (remedy := _refusal(asked))
    }
    if not found and _layers(prefill) != _layers(decode) and (_has_kv(prefill) or _has_kv(decode)):
        other = decode if decode.field.startswith("spec.decode.") or not prefill.field else prefill
        remedy = (
            "write it into spec.engine.args, alike for both roles: layers that draft have KV too, and NIXL hands KV over only "
            "between engines whose layers are the same"
        )
        found[other.field] = Problem("InvalidArgument", other.field, other.shown, remedy)
    if decode.config and cr.spec.decode.parallelism.balance == contract.BALANCE_ACTIVATIONS and not found:
        remedy = "remove it, or spec.decode.parallelism.balance: the two were never tried together"
        found[decode.field] = Problem("InvalidArgument", decode.field, decode.shown, remedy)
    return list(found.values())


def _asked(*lists: tuple[str, Sequence[str]]) -> _Asked:
    asked = _Asked({}, "", "")
    for field, args in lists:
        for option in options(args):
            config = dict(asked.config)
            named = [name for name, rule in _FIELDS.items() if rule.matches(option.name)]
            if named:  # of several vLLM takes none, and ends at its start
                config[named[0]] = as_json(option.value)
            elif not _CONFIG.matches(option.name):
                continue
            elif option.key:
                config[option.key] = as_json(option.value)
            elif isinstance(value := as_json(option.value), dict):
                config |= value
            asked = _Asked(config, f"{field}[{option.index}]", option.shown)
    return asked


def _refusal(asked: _Asked) -> str:
    """Return what to do about a method that was not tried; without one vLLM finds it out from the model, and the plug-in looks."""
    method = asked.config.get("method")
    if method is None or method in contract.SPECULATION:
        return ""
    return f"use one of {', '.join(contract.SPECULATION)}: counting was not tried with others"


def _layers(asked: _Asked) -> dict[str, Any]:
    return {name: value for name, value in asked.config.items() if name not in _NO_KV}


def _has_kv(asked: _Asked) -> bool:
    return bool(asked.config) and asked.config.get("method") not in contract.SPECULATION_WITHOUT_KV
