"""What arguments for vLLM say of speculative decoding. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator.workloads.options import as_json, options

_CONFIG = ("--speculative-config", "-sc")
_FIELDS: Mapping[str, Sequence[str]] = {
    "method": ("--spec-method",),
    "model": ("--spec-model",),
    "num_speculative_tokens": ("--spec-tokens",),
}
_NO_KV = {
    "num_speculative_tokens",
    "attention_backend",
    "moe_backend",
    "draft_sample_method",
    "rejection_sample_method",
}
"""Fields that change no layer's KV, and that NIXL's handshake leaves out (``_get_speculative_compatibility_factors``)."""


class Drafts(NamedTuple):
    """What a role's arguments ask for, and where they do so last."""

    config: dict[str, Any]
    field: str
    shown: str

    @property
    def layers(self) -> dict[str, Any]:
        """What decides about the layers that draft."""
        layers = {name: value for name, value in self.config.items() if name not in _NO_KV}
        return layers | {"method": "mtp"} if self.is_mtp else layers

    @property
    def is_mtp(self) -> bool:
        """Whether the model's own heads draft, by vLLM's name of today or an older one."""
        return re.fullmatch(r"(\w+_)?mtp", str(self.config.get("method"))) is not None

    @property
    def have_kv(self) -> bool:
        """Whether these layers have KV."""
        return bool(self.config) and self.config.get("method") not in contract.SPECULATION_WITHOUT_KV


def drafts(*lists: tuple[str, Sequence[str]]) -> Drafts:
    """Return what lists of arguments ask for, each after the name of its field; later ones win."""
    asked = Drafts({}, "", "")
    for field, args in lists:
        for option in options(args):
            config = dict(asked.config)
            named = [name for name, names in _FIELDS.items() if option.may_be(names)]
            if named:  # of several vLLM takes none, and ends at its start
                config[named[0]] = as_json(option.value)
            elif not option.may_be(_CONFIG):
                continue
            elif option.key:
                config[option.key] = as_json(option.value)
            elif isinstance(value := as_json(option.value), dict):
                config |= value
            asked = Drafts(config, f"{field}[{option.index}]", option.shown)
    return asked
